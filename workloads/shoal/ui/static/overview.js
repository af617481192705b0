// What goes on now: figures, the map of parts with their states, what is waited for.

import { chip, el, empty, note, table } from "./dom.js";

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

function content(news) {
  const figures = news.figures.filter(([, value]) => value !== "-");
  const rejects = Object.entries(news.rejects);
  return [
    el("h2", { id: "now" }, "Now"),
    news.waiting ? note("", `Now: ${news.waiting}`) : null,
    news.problem ? note("bad", news.problem) : null,
    figures.length ? el("dl", { class: "cards" }, figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))) : empty("No figures yet: the first step has not been trained."),
    rejects.length ? el("p", {}, `Rejected files by reason: ${rejects.map(([reason, times]) => `${reason} ${times}`).join(", ")}`) : null,
    ...scores(news),
    el("h2", {}, "Parts"), parts(news),
    news.notes.length ? el("details", { id: "notes" }, el("summary", {}, `${news.notes.length} notes on the store`), el("ul", {}, news.notes.map((each) => el("li", {}, each)))) : null,
  ];
}

export const overview = {
  title: "Overview",
  show: (frame) => content(frame.live),
  live: (frame, news) => {
    const open = frame.main.querySelector("#notes")?.open;
    frame.main.replaceChildren(...content(news).filter(Boolean));
    if (open && frame.main.querySelector("#notes")) frame.main.querySelector("#notes").open = true;
  },
};
