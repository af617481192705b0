// Judged files; one file; one rollout with its prompt, completion, rewards and the log-probability of each token.

import { ask } from "./api.js";
import { chip, count, el, empty, note, number, seconds, short, shownText, table, time } from "./dom.js";

const KINDS = { accept: "good", reject: "bad", expired: "warn", inconclusive: "warn" };
const STEPS = [[0.05, "p0", "under 5 %"], [0.2, "p1", "5 to 20 %"], [0.5, "p2", "20 to 50 %"], [0.9, "p3", "50 to 90 %"], [Infinity, "p4", "over 90 %"]];

function level(logprob) { return STEPS.find(([bound]) => Math.exp(logprob) < bound)[1]; }

function pager(frame, found, kept) {
  const turn = (page, text) => el("button", { type: "button", id: `page-${text}`, disabled: page < 0 || page >= found.pages, onclick: () => frame.go("rollouts", { ...kept, page: page || "" }) }, text);
  return el("div", { class: "bar" }, turn(found.page - 1, "Newer"), el("span", {}, `page ${found.page + 1} of ${found.pages}, ${count(found.total)} files`), turn(found.page + 1, "Older"));
}

async function list(frame) {
  const { node = "", outcome = "", step = "", page = "" } = frame.parameters;
  const found = await ask("files", { node, outcome, step, page });
  const filter = (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    frame.go("rollouts", { node: String(data.get("node")).trim().toLowerCase(), outcome: data.get("outcome"), step: data.get("step") });
  };
  const form = el("form", { class: "bar", role: "search", onsubmit: filter },
    el("label", { for: "outcome" }, "Verdict", el("select", { id: "outcome", name: "outcome" }, ["", "accept", "reject", "expired", "inconclusive"].map((each) => el("option", { value: each, selected: each === outcome }, each || "all")))),
    el("label", { for: "step" }, "Step", el("input", { id: "step", name: "step", type: "number", min: 0, value: step, size: 6 })),
    el("label", { for: "node" }, "Node begins with", el("input", { id: "node", name: "node", value: node, pattern: "[0-9a-fA-F]{0,64}", maxlength: 64, spellcheck: "false", autocomplete: "off" })),
    el("button", { type: "submit" }, "Show"));
  const open = (row) => `#rollouts?${new URLSearchParams({ file: `${row.node}/${row.sha256}` })}`;
  return [
    el("h2", {}, "Rollouts"), form,
    found.files.length ? table("Judged files, the newest first", [
      ["File", (row) => el("a", { href: open(row), "aria-label": `File of step ${row.step}, node ${row.node.slice(0, 12)}, submission ${row.submission}` }, short(row.sha256))],
      ["Verdict", (row) => chip(row.reason ? `${row.outcome}: ${row.reason}` : row.outcome, KINDS[row.outcome])],
      ["Step", (row) => String(row.step), true], ["Version", (row) => (row.version === null ? "–" : String(row.version)), true],
      ["Node", (row) => short(row.node)], ["Rows", (row) => count(row.rows), true], ["Tokens", (row) => count(row.tokens), true],
      ["Task reward", (row) => number(row.task_reward), true], ["Judged", (row) => time(row.unix)],
    ], found.files) : empty(found.total || node || outcome || step ? "No file fits." : "No file has a verdict yet: workers upload after they sampled, validators judge after that."),
    pager(frame, found, { node, outcome, step }),
  ];
}

function rewards(three) { return three ? `${number(three[2])} (task ${number(three[0])}, length −${number(three[1])})` : "–"; }

function sample(row) { return row.continues === null ? String(row.sample_index) : `continues row ${row.continues} from its token ${row.cut}`; }

async function file(frame, name) {
  const [node, sha256] = name.split("/");
  const path = `files/${encodeURIComponent(node)}/${encodeURIComponent(sha256 || "")}`;
  const found = await ask(path);
  const verdict = found.verdict;
  const row = frame.parameters.row === undefined ? null : Number(frame.parameters.row);
  const pairs = [["Verdict", chip(verdict.reason ? `${verdict.outcome}: ${verdict.reason}` : verdict.outcome, KINDS[verdict.outcome])], ["Node", el("span", { class: "key" }, verdict.node)],
    ["File", el("span", { class: "key" }, verdict.sha256)], ["Step, submission", `${verdict.step}, ${verdict.submission}`],
    ["Judged", `${time(verdict.unix)}${verdict.validator ? ` by ${verdict.validator}` : ""}, in ${seconds(verdict.check_seconds)}`],
    ...(verdict.completions < verdict.rows ? [["Completions", `${count(verdict.completions)}, and ${count(verdict.rows - verdict.completions)} continuations of them, which give values and are not trained on`]] : []),
    ["Proofs verified", `${count(verdict.proof_rows)} of ${count(verdict.rows)} rows`],
    ["Written by", Object.entries(found.metadata).map(([key, value]) => `${key} ${value}`).join(", ") || "–"]];
  return [
    el("p", {}, el("a", { href: "#rollouts" }, "All files")),
    el("h2", {}, `File of step ${verdict.step}`),
    verdict.reason || verdict.evidence ? note(verdict.outcome === "reject" ? "bad" : "", `${verdict.reason ? `Why rejected: ${verdict.reason}. ` : ""}${verdict.evidence}`) : null,
    el("dl", { class: "pairs" }, pairs.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)])),
    found.problem ? note("bad", found.problem) : null,
    row !== null && found.rows.length ? el("section", { id: "rollout", "aria-label": `Rollout ${row}` }, ...await rollout(path, row, found.rows.length, frame, name)) : null,
    found.rows.length ? table("Rows of the file; rewards are the validators', the worker's claim beside them", [
      ["Row", (each) => el("button", { type: "button", class: "row-open", id: `row-${each.row}`, "aria-pressed": each.row === row, "aria-label": `Show row ${each.row}`, onclick: () => frame.go("rollouts", { file: name, row: each.row }) }, String(each.row))],
      ["Problem", (each) => each.problem], ["Sample", (each) => sample(each), true], ["Tokens", (each) => count(each.tokens), true],
      ["Target", (each) => count(each.target_length), true], ["Ended by", (each) => each.finish_reason],
      ["Mean log-prob", (each) => number(each.logprob_mean), true], ["Reward", (each) => rewards(each.given)], ["Claimed", (each) => rewards(each.claimed)],
    ], found.rows) : null,
  ];
}

async function rollout(path, row, rows, frame, name) {
  const found = await ask(`${path}/rows/${row}`);
  const turn = (to, text) => el("button", { type: "button", id: `turn-${text}`, disabled: to < 0 || to >= rows, onclick: () => frame.go("rollouts", { file: name, row: to }) }, text);
  const tokens = found.completion.map(([ids, text, logprob, sampled]) => el("span",
    { class: `tok ${sampled && logprob !== null ? level(logprob) : "tool"}`, title: `token ${ids.join(" ")}, ${sampled ? `log-prob ${number(logprob)}, ${number(100 * Math.exp(logprob), 1)} %` : "not sampled"}` }, shownText(text)));
  return [
    el("h3", {}, `Row ${row}: ${found.problem}, ${found.continues === null ? "sample " : ""}${sample(found)}`),
    el("div", { class: "bar" }, turn(row - 1, "Previous"), turn(row + 1, "Next"),
      el("span", {}, `reward ${rewards(found.given)}; claimed ${rewards(found.claimed)}; ${count(found.tokens)} tokens${found.target_length === null ? "" : `, asked for ${found.target_length}`}, ended by ${found.finish_reason}`)),
    el("h3", {}, "Prompt"), el("div", { class: "text", id: "prompt", tabindex: 0, role: "region", "aria-label": "Prompt" }, shownText(found.prompt)),
    found.prompt_left_out ? el("p", {}, `${count(found.prompt_left_out)} more tokens are not shown.`) : null,
    el("h3", {}, "Completion"),
    el("div", { class: "text", id: "completion", tabindex: 0, role: "region", "aria-label": "Completion, tokens coloured by probability" }, tokens),
    found.completion_left_out ? el("p", {}, `${count(found.completion_left_out)} more tokens are not shown.`) : null,
    el("ul", { class: "legend", "aria-label": "Probability that the policy gave the token" }, STEPS.map(([, kind, words]) => el("li", {}, el("span", { class: `tok ${kind}` }, words))), el("li", {}, el("span", { class: "tok tool" }, "not sampled"))),
    el("details", { id: "tokens" }, el("summary", {}, "Tokens as a table"), table("Tokens of the completion", [
      ["Token", (each) => each.ids.join(" "), true], ["Text", (each) => el("span", { class: "key" }, shownText(each.text)), "long"],
      ["Log-prob", (each) => (each.sampled ? number(each.logprob) : "not sampled"), true], ["Probability", (each) => (each.sampled ? `${number(100 * Math.exp(each.logprob), 1)} %` : "–"), true],
    ], found.completion.map(([ids, text, logprob, sampled]) => ({ ids, text, logprob, sampled })))),
  ];
}

export const rollouts = { title: "Rollouts", show: (frame) => (frame.parameters.file ? file(frame, frame.parameters.file) : list(frame)) };
