"use strict";
// The page of `jaxformer inspect --html`. The element "data" holds all that is shown; nothing is fetched, and every
// text enters the page as text. A map is {rows, columns, values}: the weights of a head, a mean or the rollout.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { view: 0, kind: 0, layer: null, head: 0, words: false, threshold: 0, zoom: 22 }; // what is chosen
Object.assign(state, { row: null, column: null, from: 0 }); // the query, or the key; the first row of the table
const ROWS = 64; // rows of the table at a time
const LEGIBLE = 38; // pixels of a cell that hold its number
const MANY = 40; // more queries than this are chosen on the picture itself
const HEAT = 0xff8040; // blue, green, red

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true || value === false) made.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function makeButton(properties, ...children) {
  return element("button", { type: "button", ...properties }, ...children);
}

function bytes(text) {
  const letters = atob(text);
  const result = new Uint8Array(letters.length);
  for (let i = 0; i < result.length; i++) result[i] = letters.charCodeAt(i);
  return result;
}

// Maps

function values(attention) { // the weights [L, N, T, S], decoded once
  if (!attention.values) {
    const { buffer } = bytes(attention.weights);
    if (attention.bits === 32) return (attention.values = new Float32Array(buffer));
    attention.values = new Float32Array(new Uint16Array(buffer));
    for (let i = 0; i < attention.values.length; i++) attention.values[i] /= 65535;
  }
  return attention.values;
}

function mean(maps) {
  const total = new Float64Array(maps[0].length);
  for (const map of maps) for (let i = 0; i < total.length; i++) total[i] += map[i] / maps.length;
  return total;
}

function times(a, b, n) {
  const product = new Float64Array(n * n);
  for (let i = 0; i < n; i++)
    for (let k = 0; k < n; k++)
      for (let j = 0; j < n; j++) product[i * n + j] += a[i * n + k] * b[k * n + j];
  return product;
}

function isSelf(attention) {
  return attention.shape[2] === attention.shape[3] && attention.name !== "decoder.cross";
}

function pieceMap(attention, layer, head) { // head: a number, "mean" or "rollout"
  const [, heads, rows, columns] = attention.shape;
  const size = rows * columns;
  const one = (l, h) => values(attention).subarray((l * heads + h) * size, (l * heads + h + 1) * size);
  const average = (l) => mean(Array.from({ length: heads }, (_, h) => one(l, h)));
  if (head === "mean") return average(layer);
  if (head !== "rollout") return one(layer, head);
  let result = null; // Abnar and Zuidema 2020: the product of (mean + identity) / 2
  for (let l = 0; l <= layer; l++) {
    const mixed = average(l).map((x, i) => (x + (i % (rows + 1) === 0)) / 2);
    result = result ? times(mixed, result, rows) : mixed;
  }
  return result;
}

function mapOf(attention, layer, head) {
  const all = pieceMap(attention, layer, head);
  const [, , rows, columns] = attention.shape;
  if (!state.words) return { rows, columns, values: all };
  const { source, target } = attention; // a word receives the sum of its pieces' weights, and gives their mean
  const merged = new Float64Array(target.words.length * source.words.length);
  target.words.forEach(([, from], t) => source.words.forEach(([, to], s) => {
    for (const i of from) for (const j of to) merged[t * source.words.length + s] += all[i * columns + j] / from.length;
  }));
  return { rows: target.words.length, columns: source.words.length, values: merged };
}

function statistics(map, attention) { // the mean entropy of rows in nats, and the mean distance between query and key
  let entropy = 0, distance = 0;
  for (let t = 0, i = 0; t < map.rows; t++)
    for (let s = 0; s < map.columns; s++, i++) {
      const w = map.values[i];
      if (w > 0) entropy -= w * Math.log(w);
      distance += w * Math.abs(t - s);
    }
  const text = `${(entropy / map.rows).toFixed(2)} nats`;
  return isSelf(attention) && !attention.patches ? `${text}, ${(distance / map.rows).toFixed(1)} apart` : text;
}

function rowOf(map, row) { // the mean of all rows for -1
  if (row >= 0) return Array.from(map.values.slice(row * map.columns, (row + 1) * map.columns));
  return Array.from({ length: map.columns }, (_, s) => {
    let total = 0;
    for (let t = 0; t < map.rows; t++) total += map.values[t * map.columns + s];
    return total / map.rows;
  });
}

function columnOf(map, column) {
  return Array.from({ length: map.rows }, (_, t) => map.values[t * map.columns + column]);
}

function largest(numbers) {
  let top = 1e-9;
  for (const x of numbers) if (x > top) top = x;
  return top;
}

const names = (side) => (state.words ? side.words.map(([word]) => word) : side.pieces).map((name) => name || "\u2423");
const attentionNow = () => data.views[state.view].attentions[state.kind];
const kept = (weight) => (weight >= state.threshold && weight > 0 ? weight : 0);

function titleOf(attention, layer, head) {
  const number = layer + attention.first[0];
  if (head === "mean") return `Layer ${number}, mean of its heads`;
  if (head === "rollout") return `Rollout of the layers up to ${number}`;
  return `Layer ${number}, head ${head + attention.first[1]}`;
}

// Drawing

function drawMap(canvas, map) {
  canvas.width = map.columns;
  canvas.height = map.rows;
  const image = new ImageData(map.columns, map.rows);
  const colors = new Uint32Array(image.data.buffer); // alpha, blue, green, red
  const top = largest(map.values);
  for (let i = 0; i < colors.length; i++) {
    const alpha = Math.round((255 * kept(map.values[i])) / top);
    colors[i] = ((alpha << 24) | HEAT) >>> 0;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function placesBefore(attention) { // the keys before those of the grid, such as a class token
  return attention.shape[3] - attention.patches.grid[0] * attention.patches.grid[1];
}

function gridOf(map, attention) { // where the chosen query looks, as a map of the picture
  const [rows, columns] = attention.patches.grid;
  return { rows, columns, values: rowOf(map, state.row).slice(placesBefore(attention)) };
}

function drawPicture(canvas, patches, weights) { // a gray copy, and over it the weights of the grid
  const [height, width] = patches.size;
  const [rows, columns] = patches.grid;
  const pixels = (patches.decoded ??= bytes(patches.pixels));
  const top = largest(weights);
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const at = 3 * (y * width + x);
      const place = Math.floor(y * rows / height) * columns + Math.floor(x * columns / width);
      const share = kept(weights[place]) / top;
      const gray = (pixels[at] + pixels[at + 1] + pixels[at + 2]) / 3;
      const mix = (from, to) => from + 0.75 * share * (to - from);
      image.data.set([mix(gray, 255), mix(gray, 120), mix(gray, 0), 255], 4 * (y * width + x));
    }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Keys: within a group of buttons, arrows move the focus, and one button is in the order of tabs.

function group(label, className, columns, buttons) {
  const made = element("div", { class: className, role: "group", "aria-label": label }, ...buttons);
  buttons.forEach((button, i) => button.setAttribute("tabindex", i ? -1 : 0));
  made.addEventListener("focusin", ({ target }) => {
    buttons.forEach((button) => button.setAttribute("tabindex", button === target ? 0 : -1));
  });
  made.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    const next = step && buttons[buttons.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  return made;
}

// The parts of the page

function choice(label, options, chosen, choose) {
  const select = element("select", { onchange: () => choose(select.selectedIndex) },
    ...options.map((text, i) => element("option", { selected: i === chosen }, text)));
  return element("label", {}, `${label} `, select);
}

function slider(label, name, most, step, show) {
  const output = element("output", {}, show(state[name]));
  const least = name === "zoom" ? 8 : 0;
  const input = element("input", { type: "range", id: name, min: least, max: most, step, value: state[name] });
  input.addEventListener("input", () => {
    state[name] = Number(input.value);
    output.textContent = show(state[name]);
    document.documentElement.style.setProperty("--cell", `${state.zoom}px`);
    document.querySelector("table").classList.toggle("numbers", state.zoom >= LEGIBLE);
    draw();
  });
  return element("label", {}, `${label} `, input, output);
}

function set(changes) {
  Object.assign(state, { row: null, column: null, from: 0 }, changes);
  build();
}

function controls() {
  const view = data.views[state.view];
  const parts = [];
  if (data.views.length > 1) {
    const titles = data.views.map(({ title, run }) => (run ? `${title} (${run})` : title));
    parts.push(choice("Input", titles, state.view, (i) => set({ view: i, kind: 0, layer: null })));
  }
  const kinds = view.attentions.map(({ title }, i) =>
    makeButton({ "aria-pressed": String(i === state.kind), onclick: () => set({ kind: i, layer: null }) }, title));
  if (kinds.length > 1) parts.push(group("Kind of attention", "kinds", 1, kinds));
  const { source, target } = attentionNow();
  if (source.words.length < source.pieces.length || target.words.length < target.pieces.length) {
    const words = element("input", { type: "checkbox", id: "words", checked: state.words });
    words.addEventListener("change", () => set({ words: words.checked }));
    parts.push(element("label", {}, words, " Whole words"));
  }
  parts.push(slider("Threshold", "threshold", 0.5, 0.01, (x) => x.toFixed(2)));
  parts.push(slider("Zoom", "zoom", 48, 1, (x) => `${x} px`));
  if (!data.report) parts.push(themeButton());
  return element("div", { class: "controls" }, ...parts);
}

function themeButton() {
  const change = () => {
    const root = document.documentElement;
    const isDark = getComputedStyle(root).colorScheme === "dark"
      || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = isDark ? "light" : "dark";
  };
  return makeButton({ id: "theme", onclick: change }, "Dark or light");
}

function results() {
  const view = data.views[state.view];
  return element("dl", {}, element("dt", {}, "input"), element("dd", {}, view.title),
    ...view.results.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
}

function heads() { // a small map of each head of each layer, of each layer's mean and rollout
  const attention = attentionNow();
  const [layers, number] = attention.shape;
  const every = [...Array(number).keys(), ...(number > 1 ? ["mean"] : []), ...(isSelf(attention) ? ["rollout"] : [])];
  const buttons = [];
  for (let layer = 0; layer < layers; layer++)
    for (const head of every) {
      const map = mapOf(attention, layer, head);
      const canvas = element("canvas", { "aria-hidden": "true" });
      redrawHeads.push(() => drawMap(canvas, attention.patches ? gridOf(map, attention) : map));
      const title = titleOf(attention, layer, head);
      const name = typeof head === "number" ? `${layer + attention.first[0]}.${head + attention.first[1]}` : head;
      const pressed = String(layer === state.layer && head === state.head);
      const open = () => {
        Object.assign(state, { layer, head });
        buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
        large();
      };
      const about = { title, "aria-label": title, "aria-pressed": pressed, "data-map": `${layer} ${head}` };
      const numbers = element("small", {}, statistics(map, attention).replace(", ", "\n"));
      const button = makeButton({ ...about, onclick: open }, canvas, element("b", {}, name), numbers);
      buttons.push(button);
    }
  const made = group("Heads", "heads", every.length, buttons);
  made.style.setProperty("--columns", every.length);
  return element("section", { id: "heads" }, element("h2", {}, "All heads"), element("div", { class: "scroll" }, made));
}

let current = null; // the large map
let chosen = []; // the weights of its chosen row, or column if the key is chosen
let redraw = []; // what changes in it when another token is chosen
let redrawHeads = []; // and in the small maps
let shown = ""; // what these show

function large() { // the chosen map: its tokens or picture, and its table
  const attention = attentionNow();
  current = mapOf(attention, state.layer, state.head);
  redraw = [];
  const title = titleOf(attention, state.layer, state.head);
  const note = `${statistics(current, attention)}; the largest weight is ${largest(current.values).toFixed(3)}.`;
  const parts = [element("h2", {}, title), element("p", { class: "note" }, `${attention.note} ${note}`)];
  const sources = names(attention.source), targets = names(attention.target);
  const onPicture = attention.patches && isSelf(attention);
  const extra = onPicture ? placesBefore(attention) : 0;
  if (state.row === null || state.row >= current.rows) state.row = onPicture && !extra ? -1 : 0;
  const queries = onPicture ? [...Array(extra).keys(), -1] : [...Array(current.rows).keys()];
  const hint = onPicture ? "Choose what looks, or point at the picture" : "Point at a token to see where it looks";
  const rows = queries.map((t) => token(t < 0 ? "mean of all" : targets[t], "row", t, attention));
  parts.push(element("h3", {}, hint), group("Queries", "tokens", 1, rows));
  parts.push(element("p", { id: "readout", "aria-live": "polite" }));
  if (attention.patches) parts.push(picture(attention));
  else {
    const keys = sources.map((name, s) => token(name, "column", s, attention));
    parts.push(element("h3", {}, "Where it looks; point here to see what looks at a token"));
    parts.push(group("Keys", "tokens keys", 1, keys));
  }
  redraw.push(() => readout(attention, sources, targets));
  const summary = element("summary", {}, "Table of weights");
  parts.push(element("details", { open: !attention.patches }, summary, table(sources, targets, title)));
  document.getElementById("large").replaceChildren(...parts);
  draw();
}

function draw() {
  chosen = state.column === null ? rowOf(current, state.row) : columnOf(current, state.column);
  redraw.forEach((action) => action());
  const wanted = `${state.threshold} ${attentionNow().patches ? state.row : ""}`;
  if (wanted !== shown) redrawHeads.forEach((action) => action());
  shown = wanted;
}

function token(name, axis, index, attention) {
  const choose = () => {
    Object.assign(state, axis === "row" ? { row: index, column: null } : { column: index });
    draw();
  };
  const weight = element("small", {});
  const actions = { onmouseenter: choose, onfocus: choose, onclick: choose };
  const button = makeButton({ class: "token", [`data-${axis}`]: index, ...actions }, name, weight);
  if (axis === "row" && attention.patches && !isSelf(attention) && current.rows <= MANY) {
    const canvas = element("canvas", { "aria-hidden": "true" });
    button.prepend(canvas);
    redraw.push(() => drawPicture(canvas, attention.patches, rowOf(current, index)));
  }
  redraw.push(() => {
    const looksBack = state.column !== null; // from a key to the queries that look at it
    const isShown = axis === "column" ? !looksBack : looksBack && index >= 0;
    const share = isShown ? kept(chosen[index]) : 0;
    button.style.setProperty("--w", share / largest(chosen));
    weight.textContent = share > 0 ? share.toFixed(3).replace("0.000", "") : "";
    const isChosen = axis === "column" ? index === state.column : !looksBack && index === state.row;
    button.setAttribute("aria-pressed", String(isChosen));
  });
  return button;
}

function readout(attention, sources, targets) {
  const looksBack = state.column !== null;
  const list = chosen.map((weight, i) => [(looksBack ? targets : sources)[i], weight]);
  const best = list.filter(([, w]) => w > 0 && w >= state.threshold).sort((a, b) => b[1] - a[1]).slice(0, 5);
  const many = best.map(([name, w]) => `${name} ${w.toFixed(4)}`).join(", ") || "nothing above the threshold";
  const looks = `${state.row < 0 ? "The mean" : targets[state.row]} looks at`;
  const lines = [`${looksBack ? `${sources[state.column]} is looked at by` : looks} ${many}.`];
  const guesses = !looksBack && !state.words && attention.predictions[state.row];
  const shares = guesses && guesses.map(([name, share]) => `${name} ${(100 * share).toFixed(1)}%`);
  if (guesses) lines.push(element("br"), `Predicted here: ${shares.join(", ")}.`);
  document.getElementById("readout").replaceChildren(...lines);
}

function picture(attention) {
  const { patches } = attention;
  const extra = placesBefore(attention);
  const label = "The picture, brighter where the network looks";
  const canvas = element("canvas", { class: "picture", role: "img", "aria-label": label });
  redraw.push(() => drawPicture(canvas, patches, gridOf(current, attention).values));
  if (isSelf(attention))
    canvas.addEventListener("mousemove", ({ offsetX, offsetY }) => {
      const [rows, columns] = patches.grid;
      const cell = (at, size, number) => Math.min(number - 1, Math.max(0, Math.floor(at * number / size)));
      const down = cell(offsetY, canvas.clientHeight, rows);
      state.row = extra + down * columns + cell(offsetX, canvas.clientWidth, columns);
      draw();
    });
  return canvas;
}

function table(sources, targets, title) { // at most ROWS rows at a time
  const made = element("table", { class: state.zoom >= LEGIBLE ? "numbers" : "" });
  const top = largest(current.values);
  const fill = () => {
    const columns = sources.map((name) => element("th", { scope: "col" }, element("span", {}, name)));
    const head = element("tr", {}, element("th", { scope: "col", "aria-label": "row" }), ...columns);
    const body = targets.slice(state.from, state.from + ROWS).map((name, i) => {
      const t = state.from + i;
      const weights = rowOf(current, t);
      const best = largest(weights);
      return element("tr", { "data-row": t }, element("th", { scope: "row" }, name), ...weights.map((w, s) => {
        const about = { class: w === best ? "best" : null, title: `${name} \u2192 ${sources[s]}: ${w.toFixed(6)}` };
        const cell = element("td", { ...about, "data-column": s }, w.toFixed(3));
        cell.weight = w;
        return cell;
      }));
    });
    const caption = element("caption", {}, `${title}: rows look at columns`);
    made.replaceChildren(caption, element("thead", {}, head), element("tbody", {}, ...body));
  };
  fill();
  let drawn = null; // the threshold of the shades
  redraw.push(() => {
    for (const row of made.tBodies[0].rows) row.classList.toggle("chosen", Number(row.dataset.row) === state.row);
    if (drawn === `${state.threshold} ${state.from}`) return;
    drawn = `${state.threshold} ${state.from}`;
    for (const cell of made.querySelectorAll("td")) cell.style.setProperty("--w", kept(cell.weight) / top);
  });
  made.addEventListener("mouseover", ({ target }) => {
    const row = target.closest("tr[data-row]");
    if (!row) return;
    Object.assign(state, { row: Number(row.dataset.row), column: null });
    draw();
  });
  if (targets.length <= ROWS) return element("div", { class: "scroll" }, made);
  const move = (step) => () => {
    if (state.from + step < 0 || state.from + step >= targets.length) return;
    state.from += step;
    fill();
    draw();
  };
  const before = makeButton({ onclick: move(-ROWS) }, "Rows before");
  const after = makeButton({ id: "after", onclick: move(ROWS) }, "Rows after");
  return element("div", {}, before, " ", after, element("div", { class: "scroll" }, made));
}

function search(view, id, title, isOnly = () => false) {
  // the beam, a column for each step; lines lead from a hypothesis to its continuations
  const steps = view.search;
  if (!steps.length) return "";
  const [width, height] = [128, 46];
  const columns = [];
  const hint = "Point at a hypothesis to see its text and score.";
  const said = element("p", { class: "hypothesis", "aria-live": "polite" }, hint);
  const chain = (step, place) => { // from the first step to this hypothesis
    const nodes = [];
    for (; step >= 0 && place >= 0; place = steps[step--][place][0]) nodes.unshift([step, place]);
    return nodes;
  };
  const choose = (step, place) => () => {
    const nodes = chain(step, place);
    columns.flat().forEach((button) => button.classList.remove("chosen"));
    nodes.forEach(([s, p]) => columns[s][p].classList.add("chosen"));
    const [, , logProb, score, fate] = steps[step][place];
    const text = nodes.map(([s, p]) => steps[s][p][1]).join(" ");
    const numbers = `log-probability ${logProb.toFixed(4)}, score ${score.toFixed(4)}`;
    said.textContent = `${text}: ${fate}, probability ${Math.exp(logProb).toPrecision(3)}, ${numbers}`;
  };
  const lines = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  lines.setAttribute("aria-hidden", "true");
  steps.forEach((step, s) => columns.push(step.map(([parent, piece, , score, fate], p) => {
    if (parent >= 0) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const [y, end] = [parent * height + 20, p * height + 20];
      const x = s * width;
      line.setAttribute("d", `M${x - 32} ${y} C${x - 12} ${y} ${x - 20} ${end} ${x} ${end}`);
      line.setAttribute("class", fate);
      lines.append(line);
    }
    const only = isOnly(chain(s, p).map(([i, at]) => steps[i][at][1]));
    const label = `step ${s + 1}: ${piece}, ${fate}${only ? ", only here" : ""}`;
    const about = { "data-node": `${s} ${p}`, "aria-label": label };
    const actions = { onmouseenter: choose(s, p), onfocus: choose(s, p), onclick: choose(s, p) };
    const button = makeButton({ class: `node ${fate}${only ? " only" : ""}`, ...about, ...actions }, piece);
    button.append(element("small", {}, score.toFixed(3)));
    button.style.left = `${s * width}px`;
    button.style.top = `${p * height}px`;
    return button;
  })));
  const made = group("Search", "tree", 1, columns.flat());
  made.prepend(lines);
  made.style.width = lines.style.width = `${steps.length * width}px`;
  made.style.height = lines.style.height = `${Math.max(...steps.map((step) => step.length)) * height}px`;
  const note = "Each step continues the live hypotheses: some finish, the others are pruned. "
    + "Numbers are scores, with the length penalty.";
  const parts = [element("p", { class: "note" }, note), said, element("div", { class: "scroll" }, made)];
  return element("section", { id }, element("h2", {}, title), ...parts);
}

function build() {
  const attention = attentionNow();
  if (state.layer === null) {
    const [layers, number] = attention.shape;
    Object.assign(state, { layer: layers - 1, head: number > 1 ? "mean" : 0 });
  }
  redrawHeads = [];
  shown = "";
  const heading = data.report ? element("h2", { id: "attention", tabindex: -1 }, "Attention")
    : element("h1", {}, data.title);
  const header = element("header", {}, heading, controls());
  const columns = element("div", { class: "columns" }, element("section", { id: "large" }), heads());
  const caveat = "Shades are shares of the largest weight. Attention shows where a model looked, not why.";
  const footer = element("footer", {}, caveat);
  const view = data.views[state.view];
  const below = view.other === undefined ? search(view, "search", "Search") : comparison(view, data.views[view.other]);
  document.querySelector("main").replaceChildren(header, results(), columns, below, footer);
  large();
}

// After the other scripts of the page have run.
document.addEventListener("DOMContentLoaded", () => {
  if (data.views.length) build();
  else document.querySelector("main").replaceChildren(data.report ? "" : element("h1", {}, data.title));
});
