// The ledger as it was checked, and for each entry the proof that it is in it.

import { ask } from "./api.js";
import { count, el, empty, note, short, table, time } from "./dom.js";

function verdict(summary) {
  if (!summary.checked) return note("", summary.problem || "The ledger is being read and checked.");
  const words = `${count(summary.entries)} entries, ${count(summary.checkpoints)} signed checkpoints, the newest covers ${count(summary.covered)}; checked ${time(summary.unix)}: every signature, the chain, every checkpoint.`;
  return summary.good ? note("good", `The ledger is good. ${words}`) : note("bad", `The ledger is NOT good: ${summary.problems.join("; ")}. ${words}`);
}

async function prove(number, place) {
  place.replaceChildren(el("p", {}, "Asking for the proof."));
  try {
    const found = await ask(`ledger/${number}/proof`);
    const text = JSON.stringify(found.proof);
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: `entry-${number}.proof.json` }, "Save the proof");
    place.replaceChildren(note("good", `Proven: ${found.proven}. ${found.path} hashes lead from it to root `, el("span", { class: "key" }, found.root), ". "), el("p", {}, link, " and check it anywhere: ", el("code", {}, `shoal ledger proof --check entry-${number}.proof.json --run-key HEX`)));
  } catch (error) {
    place.replaceChildren(note("bad", error.message));
  }
  place.focus();
}

export const ledger = {
  title: "Ledger",
  async show(frame) {
    const { node = "", kind = "", page = "" } = frame.parameters;
    const found = await ask("ledger", { node, kind, page });
    const proof = el("section", { id: "proof", tabindex: -1, "aria-live": "polite", "aria-label": "Proof" });
    const kinds = ["", ...Object.keys(found.summary.kinds || {})];
    const turn = (to, text) => el("button", { type: "button", id: `page-${text}`, disabled: to < 0 || to >= found.pages, onclick: () => frame.go("ledger", { node, kind, page: to || "" }) }, text);
    return [
      el("h2", {}, "Ledger"), verdict(found.summary),
      el("div", { class: "bar" }, el("label", { for: "kind" }, "Kind", el("select", { id: "kind", onchange: (event) => frame.go("ledger", { node, kind: event.target.value }) },
        kinds.map((each) => el("option", { value: each, selected: each === kind }, each || "all"))))),
      proof,
      found.entries.length ? table("Entries, the newest first", [
        ["Entry", (row) => String(row.number), true], ["Time", (row) => time(row.unix)], ["Kind", (row) => row.kind],
        ["Node", (row) => (row.node ? short(row.node) : "–")], ["Step", (row) => (row.step === null ? "–" : String(row.step)), true],
        ["Version", (row) => (row.version === null ? "–" : String(row.version)), true], ["Tokens", (row) => count(row.tokens), true],
        ["Detail", (row) => row.detail || (row.digest ? el("span", {}, "digest ", short(row.digest)) : "–"), "long"],
        ["Proof", (row) => (row.number < found.summary.covered ? el("button", { type: "button", class: "row-open", id: `prove-${row.number}`, "aria-label": `Prove entry ${row.number}`, onclick: () => prove(row.number, proof) }, "prove") : el("span", { title: "no checkpoint covers it yet" }, "not yet"))],
      ], found.entries) : empty(found.summary.problem || (kind || node ? "No entry fits." : "No entry yet: the first is written when the run opens its first step.")),
      el("div", { class: "bar" }, turn(found.page - 1, "Newer"), el("span", {}, `page ${found.page + 1} of ${found.pages}, ${count(found.total)} entries`), turn(found.page + 1, "Older")),
    ];
  },
};
