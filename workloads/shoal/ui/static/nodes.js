// Nodes with what the checked ledger credits them with, and what validators said of their files.

import { ask } from "./api.js";
import { chip, count, el, empty, note, short, table, time } from "./dom.js";

const KINDS = { joined: "good", slashed: "bad", dead: "warn" };

export const nodes = {
  title: "Nodes",
  async show(frame) {
    const found = await ask("nodes");
    const summary = found.ledger;
    const title = el("h2", {}, "Nodes");
    if (!found.nodes.length) return [title, empty(summary.problem || "No node has joined yet: a node appears here when the ledger has its entry `node-joined`.")];
    return [
      title,
      summary.checked && !summary.good ? note("bad", `The ledger is NOT good: ${summary.problems[0]}. The contributions below are what it claims.`) : null,
      found.total > found.nodes.length ? el("p", {}, `${count(found.total)} nodes; those with the most tokens are shown.`) : null,
      table("Contribution and verdicts by node, largest first", [
        ["Node", (row) => el("a", { href: `#rollouts?node=${row.node}`, "aria-label": `Files of node ${row.node.slice(0, 12)}` }, short(row.node))],
        ["State", (row) => chip(row.state, KINDS[row.state] || "")],
        ["Accepted", (row) => count(row.accepted), true], ["Rejected", (row) => count(row.rejected), true],
        ["Expired", (row) => count(row.expired), true], ["Inconclusive", (row) => count(row.inconclusive), true],
        ["Groups", (row) => count(row.groups), true], ["Tokens", (row) => count(row.tokens), true],
        ["Operations", (row) => (row.flops ? row.flops.toExponential(2) : "–"), true], ["Credit", (row) => count(row.credit), true],
        ["Why rejected", (row) => Object.entries(row.reasons).map(([reason, times]) => `${reason} ${times}`).join(", ") || "–", "long"],
        ["Last in the ledger", (row) => (row.last ? `${time(row.last[0])} ${row.last[1]}${row.last[2] ? `: ${row.last[2]}` : ""}` : "–"), "long"],
      ], found.nodes),
      el("p", {}, "A slashed node keeps its tokens in the books, and none of them count as credit. A new one has credit once as many of its files were accepted as the run asks for. Operations are an estimate, two for each parameter and token."),
    ];
  },
};
