// What goes on now: figures, the map of parts with their states, what is waited for.

import { ask, Refused } from "./api.js";
import { chip, count, el, empty, note, number, shownText, table } from "./dom.js";
import { plotsOf } from "./progress.js";

const KINDS = { ready: "good", done: "good", failed: "bad", waiting: "warn", pending: "warn", starting: "warn", stopping: "warn" };
const SIGNS = { ready: "●", done: "✓", failed: "✕", waiting: "…", pending: "…", starting: "◐", stopping: "◑" };

function state(name, word) { return el("span", {}, chip(`${SIGNS[word] || "○"} ${name ? `${name} ` : ""}${word}`, KINDS[word] || "")); }

function parts(news) {
  if (!news.parts.length) {
    const why = news.complete ? "The run is complete; its parts have ended. Curves, rollouts and the ledger are what it left."
      : news.running ? "Parts of a run elsewhere are not known here; figures come from its orchestrator."
      : "No part runs. Start or resume the run with `shoal up -f MANIFEST`; this page follows it by itself.";
    return empty(why);
  }
  return el("ul", { class: "map" }, news.parts.map((pod) => el("li", { class: KINDS[pod.state] || "" },
    el("div", { class: "who" }, pod.name), state("", pod.state),
    pod.containers.length > 1 ? el("ul", { "aria-label": `Containers of ${pod.name}` }, pod.containers.map(([name, word]) => el("li", {}, state(name, word)))) : null,
    el("p", {}, [pod.address, pod.restarts ? `${pod.restarts} restarts` : "", pod.note].filter(Boolean).join(" · ")))));
}

function scores(news) {
  const { columns, rows, under_way: underWay } = news.evaluations;
  if (!rows.length && !underWay.length) return [];
  const shown = [[columns[0], (row) => `${row.version} on ${row.benchmark}${row.best ? " ★ best" : ""}`], ...columns.slice(1).map((title, index) => [title, (row) => row.cells[index], true])];
  return [
    el("h2", {}, "Scores of versions"),
    rows.length ? table("Versions on the run's benchmarks, answered by its own workers", shown, rows) : null,
    underWay.length ? el("p", {}, `Under way: ${underWay.join("; ")}`) : null,
  ];
}

const CURVES = ["Reward", "Completion length", "Loss", "Held-out loss"];
const REFRESH_MS = 10000;

function sample(each, file) {
  const open = `#rollouts?${new URLSearchParams({ file, row: each.row })}`;
  const reward = each.given ? each.given[0] : null;
  return el("li", {},
    el("p", {}, el("a", { href: open }, each.problem), `: ${count(each.tokens)} tokens${each.finish_reason === "length" ? ", cut off at the limit" : ""}, task reward ${number(reward)}`),
    el("div", { class: "text", role: "group", "aria-label": "The end of the prompt" }, shownText(each.prompt)),
    el("div", { class: "text", role: "group", "aria-label": "The end of the answer" }, shownText(each.answer)));
}

/** A place of its own for what is read from the store: not with every news, one reading at a time, and what failed is told there. */
function later(what, read) {
  const said = el("div"), body = el("div");
  let asked = 0, underWay = false;
  const refresh = async () => {
    if (underWay || Date.now() - asked < REFRESH_MS) return;
    underWay = true;
    try {
      body.replaceChildren(...(await read()).filter(Boolean));
      said.replaceChildren();
    } catch (error) {
      said.replaceChildren(note("bad", `${what} cannot be read: ${error instanceof Refused ? error.message : "the service does not answer"}`));
    } finally {
      asked = Date.now();
      underWay = false;
    }
  };
  return { place: el("div", {}, said, body), refresh };
}

// Of a finished run these are what there is to see.
const LATER = [
  later("Curves", async () => {
    const plots = await plotsOf(CURVES);
    return plots.length ? [el("h2", {}, "Curves"), el("div", { class: "plots" }, plots)] : [];
  }),
  later("Answers", async () => {
    const found = await ask("samples");
    const file = found.verdict ? `${found.verdict.node}/${found.verdict.sha256}` : "";
    return [
      found.verdict ? el("h2", {}, `Answers of step ${found.verdict.step}`) : null,
      found.problem ? note("bad", found.problem) : null,
      found.samples.length ? el("ul", { class: "samples" }, found.samples.map((each) => sample(each, file))) : null,
    ];
  }),
];

function refresh() { for (const each of LATER) each.refresh(); }

function content(news) {
  const figures = news.figures.filter(([, value]) => value !== "-");
  const rejects = Object.entries(news.rejects);
  return [
    el("h2", { id: "now" }, "Now"),
    news.cannot_learn ? note("bad", `This run cannot learn: ${news.cannot_learn}`) : null,
    news.answers ? note("", `Newest answers: ${news.answers}`) : null,
    news.waiting ? note("", `Now: ${news.waiting}`) : null,
    news.problem ? note("bad", news.problem) : null,
    figures.length ? el("dl", { class: "cards" }, figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))) : empty("No figures yet: the first step has not been trained."),
    rejects.length ? el("p", {}, `Rejected files by reason: ${rejects.map(([reason, times]) => `${reason} ${times}`).join(", ")}`) : null,
    ...scores(news), ...LATER.map((each) => each.place),
    el("h2", {}, "Parts"), parts(news),
    news.notes.length ? el("details", { id: "notes" }, el("summary", {}, `${news.notes.length} notes on the store`), el("ul", {}, news.notes.map((each) => el("li", {}, each)))) : null,
  ];
}

export const overview = {
  title: "Overview",
  show: (frame) => { refresh(); return content(frame.live); },
  live: (frame, news) => {
    refresh();
    const open = frame.main.querySelector("#notes")?.open;
    frame.main.replaceChildren(...content(news).filter(Boolean));
    if (open && frame.main.querySelector("#notes")) frame.main.querySelector("#notes").open = true;
  },
};
