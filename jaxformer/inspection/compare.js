"use strict";
// Two texts, and two searches, beside each other. The functions of page.js are at hand.

const LONGEST = 400; // words of a text that is compared

function commonWords(a, b) { // for each word of a, whether a longest common subsequence has it
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      lengths[i][j] = a[i] === b[j] ? 1 + lengths[i + 1][j + 1] : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const common = [];
  for (let i = 0, j = 0; i < a.length;) {
    if (j < b.length && a[i] === b[j] && lengths[i][j] === 1 + lengths[i + 1][j + 1]) {
      common.push(true);
      i++;
      j++;
    } else if (j < b.length && lengths[i][j] === lengths[i][j + 1]) j++;
    else {
      common.push(false);
      i++;
    }
  }
  return common;
}

function marked(text, other) { // the text, whose words that the other text lacks at their place are marked
  const parts = (whole) => whole.split(/(\s+)/u).filter((part) => part);
  const isWord = (part) => /\S/u.test(part);
  const all = parts(text);
  const words = all.filter(isWord), others = parts(other).filter(isWord);
  if (words.length > LONGEST || others.length > LONGEST) return [text];
  const common = commonWords(words, others);
  let place = 0;
  return all.map((part) => (isWord(part) && !common[place++] ? element("mark", {}, part) : part));
}

function prefixes(steps) { // the texts of all hypotheses of a search
  const found = new Set();
  let before = [];
  for (const step of steps) {
    before = step.map(([parent, piece]) => [...(parent >= 0 ? before[parent] : []), piece]);
    before.forEach((pieces) => found.add(JSON.stringify(pieces)));
  }
  return found;
}

function comparison(view, other) { // what two runs or two settings give for one input
  const row = ([name, text]) => {
    const theirs = (other.results.find(([key]) => key === name) ?? [name, ""])[1];
    return element("tr", {}, element("th", { scope: "row" }, name),
      element("td", {}, ...marked(text, theirs)), element("td", {}, ...marked(theirs, text)));
  };
  const columns = ["", view.run, other.run].map((name) => element("th", { scope: "col" }, name));
  const caption = element("caption", {}, "Words that the other text lacks are marked.");
  const table = element("table", { class: "texts" }, caption, element("thead", {}, element("tr", {}, ...columns)),
    element("tbody", {}, ...view.results.map(row)));
  const [ours, theirs] = [prefixes(view.search), prefixes(other.search)];
  const lacks = (known) => (pieces) => !known.has(JSON.stringify(pieces));
  const trees = [search(view, "search", `Search: ${view.run}`, lacks(theirs)),
    search(other, "search-other", `Search: ${other.run}`, lacks(ours))];
  const legend = element("p", { class: "note" }, "A bar at the left marks hypotheses that the other search never had.");
  return element("section", { id: "comparison" }, element("h2", {}, "Comparison"),
    element("div", { class: "scroll" }, table), ...(view.search.length ? [legend] : []),
    element("div", { class: "sides" }, ...trees));
}
