// Two views of steps: what overlapped and what waited, and the curves.

import { ask } from "./api.js";
import { lanes, lines } from "./charts.js";
import { count, el, empty, number, seconds, svg, table, time } from "./dom.js";

const LANES = ["broadcast", "generation", "verification", "training"];
const REDRAW_MS = 4000;
let drawn = 0;

function again(frame) {
  if (Date.now() - drawn < REDRAW_MS) return;
  drawn = Date.now();
  frame.redraw();
}

function describe(bar) {
  const [lane, step, start, end, what, state] = bar;
  const who = what.length > 40 ? what.slice(0, 12) : what;
  const of = lane === "broadcast" ? "" : `step ${step}, `;
  return `${lane}: ${of}${who}${state ? `, ${state}` : ""}, ${time(start)}, ${seconds(end - start)}`;
}

async function showTimeline(frame) {
  drawn = Date.now();
  const last = frame.parameters.steps || "8";
  const found = await ask("timeline", { steps: last });
  const choose = el("select", { id: "steps", onchange: (event) => frame.go("timeline", { steps: event.target.value }) },
    ["4", "8", "16", "40", "200"].map((each) => el("option", { value: each, selected: each === last }, each)));
  const bar = el("div", { class: "bar" }, el("label", { for: "steps" }, "Last steps", choose));
  if (!found.bars.length) return [el("h2", {}, "Timeline"), bar, empty("Nothing to draw yet: the first lease, upload or version will be the first bar.")];
  const picture = lanes(LANES, found.bars, describe);
  picture.setAttribute("aria-label", `Bars of ${LANES.join(", ")} over time; the table below has the same in figures.`);
  const islands = found.rows.some((row) => row.exchange_seconds !== null);
  const legend = el("ul", { class: "legend" }, [...LANES, "wait"].map((lane) => el("li", {},
    svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, svg("rect", { class: lane, width: 26, height: 10, rx: 2 })),
    ` ${{ generation: "generation (lease to upload)", verification: "verification", training: "training", broadcast: "broadcast (opened to sealed)", wait: islands ? "trainer waits for its batch, or for other islands" : "trainer waits for its batch" }[lane]}`)));
  return [
    el("h2", {}, "Timeline"),
    el("p", {}, "What overlapped, and what waited. Numbers in bars are steps, for broadcasts the version; pale bars are files that were not used."),
    bar, el("figure", {}, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Timeline" }, el("div", { class: "wide" }, picture)), legend),
    el("h2", {}, "Steps"),
    table("Seconds of each step; overlap is training while workers sampled", [
      ["Step", (row) => String(row.step), true], ["Opened", (row) => time(row.opened)], ["Sealed", (row) => time(row.sealed)],
      ["Generation", (row) => seconds(row.generation_seconds), true], ["Verification", (row) => seconds(row.verification_seconds), true],
      ["Trainer waited", (row) => seconds(row.wait_seconds), true],
      ...(islands ? [["Exchange with islands", (row) => seconds(row.exchange_seconds), true]] : []), ["Training", (row) => seconds(row.training_seconds), true],
      ["Overlap", (row) => seconds(row.overlap_seconds), true], ["Broadcast", (row) => seconds(row.broadcast_seconds), true],
    ], found.rows.slice().reverse()),
  ];
}

export const timeline = { title: "Timeline", show: showTimeline, live: again };

const PLOTS = [
  ["Reward", "mean of the step", [["total", "reward"], ["task", "task_reward"]]],
  ["Gradient norm", "before the clip", [["mean", "gradient_norm"], ["largest", "gradient_norm_max"]]],
  ["Clipped tokens", "share", [["at 1 − ε", "clip_low"], ["at 1 + ε", "clip_high"], ["at δ", "clip_delta"]]],
  ["Entropy", "nats per token", [["entropy", "entropy"]]],
  ["KL", "nats per token", [["to the base", "kl"], ["worker against trainer", "mismatch_kl"]]],
  ["Loss", "", [["loss", "loss"]]],
  ["Completion length", "tokens", [["mean", "completion_length_mean"]]],
  ["Length penalty", "", [["mean", "length_penalty"]]],
  ["Policy lag", "versions", [["mean", "policy_lag_mean"], ["largest", "policy_lag_max"]]],
  ["Packing density", "share", [["density", "packing_density"]]],
  ["Held-out loss", "nats per token", [["held out", "held_out_loss"]]],
];
const TYPE_PLOTS = [
  ["Task reward by task type", "mean of the step", "task_reward"], ["Completion length by task type", "tokens", "completion_length_mean"],
  ["Groups with signal by task type", "share of those sampled", "signal_share"], ["Groups sampled by task type", "share", "sampled_share"],
  ["Groups trained on by task type", "share", "share"],
];
const TABLE = [["reward", "Reward"], ["task_reward", "Task reward"], ["gradient_norm", "Gradient norm"], ["entropy", "Entropy"], ["kl", "KL"], ["policy_lag_mean", "Lag"], ["completion_length_mean", "Length"]];

/** Plots of some of `PLOTS`, by title; nothing for a run that has trained no step. */
export async function plotsOf(titles) {
  const found = await ask("steps");
  const at = (name, index) => (found.trained[index] ? found.columns[name][index] : null);
  const values = (name) => found.step.map((_, index) => at(name, index));
  if (!found.step.length) return [];
  const shown = PLOTS.filter(([title, , series]) => titles.includes(title) && series.some(([, name]) => values(name).some((each) => each !== null && each !== 0)));
  return shown.map(([title, unit, series]) => lines(title, unit, found.step, series.map(([name, key]) => [name, values(key)])));
}

async function showCurves() {
  drawn = Date.now();
  const found = await ask("steps");
  if (!found.step.length) return [el("h2", {}, "Curves"), empty("No step has been trained yet: a step is trained once enough groups with signal were accepted.")];
  const at = (name, index) => (found.trained[index] ? found.columns[name][index] : null);
  const values = (name) => found.step.map((_, index) => at(name, index));
  const plots = PLOTS.filter(([, , series]) => series.some(([, name]) => values(name).some((each) => each !== null && each !== 0)));
  const typed = TYPE_PLOTS.map(([title, unit, key]) => [title, unit, Object.entries(found.by_task_type[key])])
    .filter(([, , series]) => series.some(([, each]) => each.some((value) => value !== null)));
  const rows = found.step.map((step, index) => ({ step, index })).reverse();
  return [
    el("h2", {}, "Curves"),
    found.warnings.length ? el("ul", { class: "note bad" }, found.warnings.slice(-5).map(([step, words]) => el("li", {}, `step ${step}: ${words}`))) : null,
    el("div", { class: "plots" }, plots.map(([title, unit, series]) => lines(title, unit, found.step, series.map(([name, key]) => [name, values(key)]))),
      typed.map(([title, unit, series]) => lines(title, unit, found.step, series))),
    el("details", { id: "figures" }, el("summary", {}, "The same as a table"),
      table("Figures by step, the newest first", [["Step", (row) => String(row.step), true], ...TABLE.map(([key, title]) => [title, (row) => number(at(key, row.index)), true]),
        ["Rows", (row) => count(at("rows", row.index)), true]], rows)),
  ];
}

export const curves = { title: "Curves", show: showCurves, live: again };
