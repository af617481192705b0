// Makes elements. All text goes through text nodes: nothing a node wrote is ever markup (the policy of the service forbids it too).

const SVG = "http://www.w3.org/2000/svg";
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udfff](?![\udc00-\udfff])/u;

/** An element with attributes and children; a child that is null is left out, a string becomes text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Text of which control characters, bidirectional overrides and the like are seen and have no effect; line ends are kept and marked. */
export function shownText(text) {
  const pieces = [];
  let plain = "";
  const flush = () => { if (plain) pieces.push(document.createTextNode(plain)); plain = ""; };
  for (const character of String(text)) {
    if (character === "\n" || character === "\t" || CONTROL.test(character)) {
      flush();
      const code = character.codePointAt(0);
      const name = character === "\n" ? "⏎" : character === "\t" ? "⇥" : `\\u${code.toString(16).padStart(4, "0")}`;
      pieces.push(el("span", { class: "c" }, name));
      if (character === "\n") plain = "\n";
    } else plain += character;
  }
  flush();
  return pieces;
}

/** A table with a caption. Columns: [title, (row) => cell, kind]; kind: true for numbers, or a class. A cell is a string or an element. */
export function table(caption, columns, rows) {
  const head = el("tr", {}, columns.map(([title, , kind]) => el("th", { scope: "col", class: kind === true ? "n" : null }, title)));
  const body = rows.map((row) => el("tr", {}, columns.map(([, cell, kind], at) => {
    const made = cell(row);
    return at === 0
      ? el("th", { scope: "row", class: kind === true ? "n" : null }, made)
      : el("td", { class: kind === true ? "n" : kind || null }, made);
  })));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)));
}

export function empty(text) { return el("p", { class: "empty" }, text); }
export function note(kind, ...children) { return el("p", { class: `note ${kind}` }, ...children); }
export function chip(text, kind = "") { return el("span", { class: `chip ${kind}` }, text); }

const NONE = "–";
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}
export function count(value) { return value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en-GB"); }
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  return value < 5400 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}
export function time(unix) {
  return unix ? new Date(unix * 1000).toISOString().replace("T", " ").slice(0, 19) : NONE;
}
export function short(key) { return el("span", { class: "key", title: key }, key.slice(0, 12)); }
