"use strict";
// The parts of `jaxformer evaluate --report` above the attention: scores, examples, curves, times. The functions of
// page.js and compare.js are at hand; `data.report` has the fields of `inspection.reports.Report`.

const PER_PAGE = 10; // examples at a time
const report = data.report;
const shownNumber = (x, decimals = 2) => (x === null || x === undefined ? "\u2013" : x.toFixed(decimals));

function tableOf(caption, columns, rows, properties = {}) { // the first cell of a row is its heading
  const body = rows.map(([first, ...cells]) =>
    element("tr", {}, element("th", { scope: "row" }, first), ...cells.map((cell) => element("td", {}, cell))));
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
  const made = element("table", { class: "numbers-table", ...properties }, element("caption", {}, caption),
    element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "scroll" }, made);
}

function between(interval, decimals) {
  return interval ? `${interval[0].toFixed(decimals)} to ${interval[1].toFixed(decimals)}` : "\u2013";
}

function bar(value, interval, least, most) { // a point and its interval on the scale from least to most
  const share = (x) => `${(100 * (x - least)) / Math.max(most - least, 1e-9)}%`;
  const made = element("span", { class: "bar", "aria-hidden": "true" });
  if (value === null) return made;
  const point = element("i", {});
  point.style.left = share(value);
  if (interval) {
    const line = element("b", {});
    line.style.left = share(interval[0]);
    line.style.right = `calc(100% - ${share(interval[1])})`;
    made.append(line);
  }
  made.append(point);
  return made;
}

function scaleOf(rows) { // the least and the largest number of scores of one name
  const all = rows.flatMap(({ value, interval }) => [value, ...(interval ?? [])]).filter((x) => x !== null);
  return [Math.min(...all), Math.max(...all)];
}

function withBar(score, all) {
  const { value, interval, decimals } = score;
  return element("span", {}, shownNumber(value, decimals), bar(value, interval, ...scaleOf(all)));
}

function scores() {
  const named = (name) => report.corpora.flatMap((corpus) => corpus.scores.filter((score) => score.name === name));
  const columns = ["Corpus", "Score", "Value", "95% interval", ...(report.other
    ? [`Value of ${report.other}`, "Difference", "95% interval of the difference", "p-value"] : [])];
  const rows = report.corpora.flatMap((corpus) => corpus.scores.map((score) => {
    const { decimals, difference, other } = score;
    const shown = difference ? difference[0] : other === null ? null : score.value - other;
    const signed = (x) => (x === null ? "\u2013" : `${x > 0 ? "+" : ""}${x.toFixed(decimals)}`);
    const range = between(difference && difference.slice(1, 3), decimals);
    const compared = [shownNumber(other, decimals), signed(shown), range, shownNumber(difference && difference[3], 3)];
    const name = element("span", { title: score.signature }, score.name);
    const own = [corpus.name, name, withBar(score, named(score.name)), between(score.interval, decimals)];
    return report.other ? [...own, ...compared] : own;
  }));
  const how = "Intervals are of 1,000 bootstrap samples of the examples; they say nothing about other training seeds.";
  const paired = report.other ? ` A difference is this run minus ${report.other}, on the same samples.` : "";
  const signatures = new Set(report.corpora.flatMap((corpus) => corpus.scores.map((x) => `${x.name}: ${x.signature}`)));
  const details = element("details", {}, element("summary", {}, "How the scores are computed"),
    element("ul", {}, ...[...signatures].map((text) => element("li", {}, text))));
  return element("section", { id: "scores" }, element("h2", {}, "Scores"),
    tableOf(how + paired, columns, rows), details);
}

function lengths() {
  const tables = report.corpora.filter((corpus) => corpus.lengths.length).map((corpus) => {
    const names = corpus.lengths[0].scores.map(({ name }) => name);
    const all = names.map((_, i) => corpus.lengths.map((row) => row.scores[i]));
    const rows = corpus.lengths.map(({ first, last, number, scores: own }) => [
      first === last ? String(first) : `${first}\u2013${last}`, number.toLocaleString("en"),
      ...own.flatMap((score, i) => [withBar(score, all[i]), between(score.interval, score.decimals)])]);
    const columns = [`Length in ${corpus.unit}`, "Examples", ...names.flatMap((name) => [name, "95% interval"])];
    return tableOf(corpus.name, columns, rows);
  });
  if (!tables.length) return "";
  return element("section", { id: "lengths" }, element("h2", {}, "Scores by length"), ...tables);
}

// Examples

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function orders() { // names of orders, with their functions from examples, which are worst first, to sorted ones
  const by = (key) => (list) => [...list].sort((a, b) => key(a) - key(b));
  const gain = report.other && report.examples.some((x) => x.gain !== null);
  return [
    ...(report.ranked_by ? [["worst first", (list) => list], ["best first", (list) => [...list].reverse()]] : []),
    ["as in the data", by(({ corpus, number }) => corpus * 1e9 + number)],
    ...(gain ? [[`worse than ${report.other}`, by((x) => x.gain)],
      [`better than ${report.other}`, by((x) => -x.gain)]] : []),
  ];
}

function textOf(name, text, texts) { // a text of an example; what the reference lacks is marked
  const isGuess = name.startsWith("hypothesis") || name.startsWith("guess");
  const right = texts.reference ?? texts.labels ?? texts.label;
  const shown = isGuess && right !== undefined ? marked(text, right) : [text];
  return [element("dt", {}, name), element("dd", {}, ...shown)];
}

function example(one) {
  const { texts, numbers, number, view } = one;
  const corpus = report.corpora[one.corpus];
  const named = (name) => (name === "score" ? "model score" : name.replaceAll("_", " "));
  const shown = (name, x) => `${named(name)} ${shownNumber(x, name === "tokens" ? 0 : 2)}`;
  const values = Object.entries(numbers).map(([name, x]) => shown(name, x));
  if (report.other && one.gain !== null) {
    const size = shownNumber(Math.abs(one.gain));
    values.push(one.gain < 0 ? `${size} below ${report.other}` : `+${size} over ${report.other}`);
  }
  const title = `${corpus.name} ${number}`;
  const show = () => {
    set({ view, kind: 0, layer: null });
    document.getElementById("attention").focus();
    document.getElementById("attention").scrollIntoView();
  };
  const [given] = Object.values(texts);
  const command = `${corpus.command} -- ${quoted(given)}`;
  const action = view !== undefined
    ? makeButton({ onclick: show, "data-opens": view, "aria-label": `Attention of ${title}` }, "Attention")
    : element("details", {}, element("summary", {}, "Command that shows its attention"), element("code", {}, command));
  return element("article", { "aria-label": title, "data-example": `${one.corpus} ${number}` },
    element("h3", {}, `${title}: ${values.join(", ")}`),
    element("dl", {}, ...Object.entries(texts).flatMap(([name, text]) => textOf(name, text, texts))),
    ...(corpus.command ? [action] : []));
}

function examples() {
  if (!report.examples.length) return "";
  const all = orders();
  let [chosen, start] = [0, 0];
  const list = element("div", { class: "examples" });
  const said = element("p", { class: "note", "aria-live": "polite" });
  const fill = () => {
    const sorted = all[chosen][1](report.examples);
    const part = sorted.slice(start, start + PER_PAGE);
    list.replaceChildren(...part.map(example));
    const places = `${start + 1} to ${start + part.length} of ${sorted.length.toLocaleString("en")}`;
    said.textContent = `${all[chosen][0]}: ${places}`;
  };
  const move = (step) => () => {
    if (start + step < 0 || start + step >= report.examples.length) return;
    start += step;
    fill();
  };
  const order = choice("Order", all.map(([name]) => name), 0, (i) => {
    [chosen, start] = [i, 0];
    fill();
  });
  fill();
  const count = (number) => number.toLocaleString("en");
  const limit = `${(report.limit / 1e6).toLocaleString("en")} MB`;
  const notes = [report.ranked_by ? `Ordered by ${report.ranked_by}.` : "",
    `Attention of ${data.views.length} examples, the worst and the best, is on this page, which has at most ${limit}.`,
    data.views.length < report.wanted ? `There was no room for ${report.wanted - data.views.length} more.` : "",
    report.examples.length < report.total
      ? `Of ${count(report.total)} examples, the ${count(report.examples.length)} worst and best are here.` : ""];
  return element("section", { id: "examples" }, element("h2", {}, "Worst and best examples"),
    element("p", { class: "note" }, notes.filter((note) => note).join(" ")),
    element("div", { class: "controls" }, order, makeButton({ onclick: move(-PER_PAGE) }, "Before"),
      makeButton({ id: "more", onclick: move(PER_PAGE) }, "After"), said), list);
}

// The training

function svg(tag, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function ticks(least, most) { // about five round numbers
  const rough = (most - least) / 5 || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * unit).find((x) => x >= rough);
  const found = [];
  for (let x = Math.ceil(least / step - 1e-9) * step; x <= most + step * 1e-9; x += step)
    found.push(Number(x.toPrecision(12)));
  return found;
}

function plot(title, curves) { // steps to the right, values upward
  const [width, height, left, bottom, right] = [560, 240, 56, 40, 28];
  const points = curves.flatMap(([, list]) => list);
  const [first, last] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
  const [low, high] = [Math.min(...points.map(([, y]) => y)), Math.max(...points.map(([, y]) => y))];
  const x = (step) => left + ((step - first) / Math.max(last - first, 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / Math.max(high - low, 1e-9)) * (height - bottom - 12);
  const parts = [];
  for (const step of ticks(first, last))
    parts.push(svg("path", { class: "grid", d: `M${x(step)} 12V${height - bottom}` }),
      svg("text", { x: x(step), y: height - bottom + 16, "text-anchor": "middle" }, step.toLocaleString("en")));
  for (const value of ticks(low, high))
    parts.push(svg("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  parts.push(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "step"));
  curves.forEach(([name, list], i) => {
    const d = list.map(([step, value], k) => `${k ? "L" : "M"}${x(step).toFixed(2)} ${y(value).toFixed(2)}`).join("");
    parts.push(svg("path", { class: `curve curve${i}`, d, "data-curve": name }));
    for (const [step, value] of list.length <= 40 ? list : [])
      parts.push(svg("circle", { class: `curve${i}`, cx: x(step), cy: y(value), r: 3 }));
  });
  const legend = curves.map(([name], i) => element("span", { class: `legend curve${i}` }, name));
  const about = { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} by step` };
  const picture = svg("svg", about, ...parts);
  const rows = curves.flatMap(([name, list]) =>
    list.map(([step, value]) => [step.toLocaleString("en"), name, value.toPrecision(5)]));
  const table = element("details", {}, element("summary", {}, `Table of ${title}`),
    tableOf(title, ["Step", "Curve", "Value"], rows));
  return element("figure", {}, element("figcaption", {}, ...legend), picture, table);
}

function curves() {
  const all = Object.entries(report.curves);
  if (!all.length) return "";
  const isLoss = ([name]) => name.startsWith("training loss") || name === "validation loss";
  const losses = all.filter(isLoss);
  const plots = [...(losses.length ? [plot("losses", losses)] : []),
    ...all.filter((curve) => !isLoss(curve) && curve[1].length > 1).map((curve) => plot(curve[0], [curve]))];
  return element("section", { id: "curves" }, element("h2", {}, "Training"),
    element("div", { class: "plots" }, ...plots));
}

function timeTable() {
  const all = Object.entries(report.seconds).sort((a, b) => b[1] - a[1]);
  const total = all.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return "";
  const time = (seconds) => (seconds < 60 ? `${seconds.toFixed(1)} s`
    : seconds < 3600 ? `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")} min`
      : `${Math.floor(seconds / 3600)}:${String(Math.floor(seconds / 60) % 60).padStart(2, "0")} h`);
  const rows = all.map(([part, seconds]) => {
    const share = element("span", { class: "share", "aria-hidden": "true" }, element("b", {}));
    share.firstChild.style.width = `${(100 * seconds) / total}%`;
    return [part, time(seconds), element("span", {}, `${((100 * seconds) / total).toFixed(1)}%`, share)];
  });
  return element("section", { id: "times" }, element("h2", {}, "Where the time of the training went"),
    tableOf(`${time(total)} in all starts`, ["Part", "Time", "Share"], rows));
}

function reportParts() {
  const facts = element("dl", {}, ...Object.entries(report.facts).flatMap(([name, text]) =>
    [element("dt", {}, name), element("dd", {}, text)]));
  return element("div", { id: "report" }, element("header", {}, element("h1", {}, data.title), themeButton()),
    facts, scores(), lengths(), examples(), curves(), timeTable());
}

document.querySelector("main").before(reportParts());
