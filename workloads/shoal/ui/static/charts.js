// Lines over steps and bars over time, as SVG. Each chart has a text for those who do not see it, and its figures in a table beside.

import { el, svg, number } from "./dom.js";

const W = 400, H = 190, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 26;

/** Round numbers that cover [low, high] in some `most` parts. */
export function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

function label(value, step) {
  if (value === 0) return "0";
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6 ? value.toExponential(0) : value.toFixed(digits + (step * 10 ** digits % 1 > 1e-6 ? 1 : 0));
}

/** A figure: `series` are [name, values], all over the same `steps`. */
export function lines(title, unit, steps, series) {
  const values = series.flatMap(([, each]) => each).filter((each) => Number.isFinite(each));
  if (!values.length) return el("figure", {}, el("figcaption", {}, title), el("p", { class: "empty" }, "no figures yet"));
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  if (low > 0 && low < 0.4 * high) low = 0;
  const first = steps[0], last = Math.max(steps[steps.length - 1], first + 1);
  const x = (step) => LEFT + ((step - first) / (last - first)) * (W - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (H - TOP - BOTTOM);
  const drawn = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": told(title, unit, steps, series) });
  const marks = ticks(low, high, 4);
  for (const mark of marks) {
    drawn.append(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(mark), y2: y(mark) }));
    drawn.append(svg("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, label(mark, marks[1] - marks[0] || 1)));
  }
  for (const mark of ticks(first, last, 6).filter(Number.isInteger)) drawn.append(svg("text", { x: x(mark), y: H - 8, "text-anchor": "middle" }, mark));
  drawn.append(svg("text", { x: W - RIGHT, y: H + 2, "text-anchor": "end" }, "step"));
  series.forEach(([, each], at) => {
    const parts = [[]];
    each.forEach((value, index) => Number.isFinite(value) ? parts.at(-1).push([x(steps[index]), y(value)]) : parts.push([]));
    for (const part of parts.filter((some) => some.length)) {
      if (part.length === 1) drawn.append(svg("circle", { class: `dot s${(at % 4) + 1}`, cx: part[0][0], cy: part[0][1], r: 3 }));
      else drawn.append(svg("path", { class: `line s${(at % 4) + 1} d${(at % 4) + 1}`, d: "M" + part.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join("L") }));
    }
  });
  const legend = series.length > 1 ? el("ul", { class: "legend" }, series.map(([name], at) => el("li", {},
    svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, svg("path", { class: `line s${(at % 4) + 1} d${(at % 4) + 1}`, d: "M0,5L26,5" })), " ", name))) : null;
  return el("figure", {}, el("figcaption", {}, unit ? `${title} (${unit})` : title), drawn, legend);
}

function told(title, unit, steps, series) {
  const words = series.map(([name, values]) => {
    const known = values.filter((each) => Number.isFinite(each));
    return known.length ? `${name}: ${number(known[0])} at first, ${number(known.at(-1))} at last, between ${number(Math.min(...known))} and ${number(Math.max(...known))}` : `${name}: no figures`;
  });
  return `${title}${unit ? `, ${unit}` : ""}, steps ${steps[0]} to ${steps.at(-1)}. ${words.join(". ")}`;
}

/** Bars in lanes over time; `bars` are [lane, step, start, end, what, state]. Bars of a lane that overlap lie on rows of their own. */
export function lanes(order, bars, titles) {
  const start = Math.min(...bars.map((bar) => bar[2])), end = Math.max(...bars.map((bar) => bar[3]));
  const width = 1000, left = 110, rowHeight = 16, gap = 14;
  const x = (unix) => left + ((unix - start) / Math.max(end - start, 1e-3)) * (width - left - 10);
  const drawn = svg("svg", { role: "img" }, svg("defs", {}, svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 }))));
  let top = 10;
  for (const lane of order) {
    const own = bars.filter((bar) => bar[0] === lane);
    const ends = [];
    const boxes = own.map((bar) => {
      let row = ends.findIndex((each) => each <= bar[2] + 1e-6);
      if (row < 0) row = ends.length < 12 ? ends.push(0) - 1 : 0;
      ends[row] = Math.max(ends[row], bar[3]);
      const lost = ["reject", "expired", "inconclusive"].includes(bar[5]);
      const waits = ["wait", "exchange"].includes(bar[5]);
      const box = svg("rect", { class: `bar-box ${waits ? "wait" : lane} ${lost ? "lost" : ""}`, x: x(bar[2]).toFixed(1), y: top + row * rowHeight,
        width: Math.max(1.5, x(bar[3]) - x(bar[2])).toFixed(1), height: rowHeight - 3, rx: 2 });
      box.append(svg("title", {}, titles(bar)));
      const wide = x(bar[3]) - x(bar[2]) > 26 && !waits;
      return wide ? [box, svg("text", { class: "inside", x: x(bar[2]) + 4, y: top + row * rowHeight + 10.5, "aria-hidden": "true" }, bar[1])] : [box];
    });
    drawn.append(svg("text", { class: "lane", x: 0, y: top + 11 }, lane), ...boxes.flat());
    top += Math.max(1, ends.length) * rowHeight + gap;
    drawn.append(svg("line", { class: "grid", x1: left, x2: width - 10, y1: top - gap / 2 - 1, y2: top - gap / 2 - 1 }));
  }
  for (const mark of ticks(0, end - start, 8)) {
    drawn.append(svg("text", { x: x(start + mark), y: top + 10, "text-anchor": "middle" }, `${Math.round(mark)} s`));
  }
  drawn.setAttribute("viewBox", `0 0 ${width} ${top + 16}`);
  return drawn;
}
