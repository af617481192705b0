// The frame of the page: which view is shown, the stream of news, the theme, the token. A view is {title, show(frame), live?(frame, news)}.

import { ask, Refused, signIn } from "./api.js";
import { el, empty, note } from "./dom.js";
import { overview } from "./overview.js";
import { timeline, curves } from "./progress.js";
import { nodes } from "./nodes.js";
import { rollouts } from "./rollouts.js";
import { ledger } from "./ledger.js";

const VIEWS = { overview, timeline, curves, nodes, rollouts, ledger };
const main = document.getElementById("main");
const frame = { main, live: null, run: null, parameters: {}, go, redraw: () => show(false) };
let shown = "", turn = 0, stream = null, silent = 0;

/** `#rollouts?step=3` */
function place() {
  const [name, query] = location.hash.slice(1).split("?");
  return [name in VIEWS ? name : "overview", Object.fromEntries(new URLSearchParams(query || ""))];
}

function go(name, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  location.hash = query.size ? `${name}?${query}` : name;
}

async function show(moveFocus) {
  const own = ++turn;
  const [name, parameters] = place();
  frame.parameters = parameters;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  document.title = `${VIEWS[name].title} – ${frame.run ? frame.run.run : "Shoal"}`;
  try {
    const made = await VIEWS[name].show(frame);
    if (own !== turn) return;
    replace(made, shown === name);
    shown = name;
    if (moveFocus) main.focus({ preventScroll: false });
  } catch (error) {
    if (own === turn) failed(error);
  } finally {
    if (own === turn) main.setAttribute("aria-busy", "false");
  }
}

/** Put new content in; what had the focus and what was open keeps it where the same thing is there again. */
function replace(made, same) {
  const focused = same && main.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Set([...main.querySelectorAll("details[open]")].map((each) => each.id));
  main.replaceChildren(...made.filter(Boolean));
  if (same) for (const each of main.querySelectorAll("details")) if (open.has(each.id)) each.open = true;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function failed(error) {
  if (error instanceof Refused && error.status === 401) { askForToken(); return; }
  const words = error instanceof Refused ? error.message : "the service does not answer; is `shoal ui` still running?";
  main.replaceChildren(note("bad", words), el("button", { type: "button", onclick: () => show(false) }, "Try again"));
}

function askForToken(wrong = false) {
  const field = el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false" });
  const form = el("form", {}, el("h2", {}, "A token is needed"), el("p", {}, "Take the token that `shoal ui` printed when it was started."),
    wrong ? note("bad", "That was not the token.") : null,
    el("div", { class: "bar" }, el("label", { for: "token" }, "Token", field), el("button", { type: "submit" }, "Open")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await signIn(field.value)) begin();
    else askForToken(true);
  });
  main.replaceChildren(form);
  field.focus();
}

function connection(text, kind) {
  const place = document.getElementById("connection");
  if (place.textContent !== text) place.textContent = text;
  place.className = `chip ${kind}`;
}

function told(news) {
  frame.live = news;
  silent = 0;
  document.getElementById("headline").textContent = news.headline;
  connection(news.complete ? "complete" : news.running ? "live" : "not running", news.running || news.complete ? "good" : "");
  const view = VIEWS[place()[0]];
  if (view.live && shown === place()[0]) view.live(frame, news);
}

function listen() {
  stream?.close();
  stream = new EventSource("api/events");
  stream.addEventListener("live", (event) => told(JSON.parse(event.data)));
  stream.addEventListener("error", () => { silent += 1; if (silent > 1) connection("connection lost, trying again", "bad"); });
}

async function begin() {
  try {
    frame.run = await ask("run");
    document.getElementById("run").textContent = frame.run.run;
    document.getElementById("foot").textContent = `Object store: ${frame.run.store}. Ledger checked against run key ${frame.run.run_key} (from ${frame.run.run_key_from}). Times are UTC.`;
    told(await ask("live"));
    listen();
    await show(false);
  } catch (error) {
    failed(error);
  }
}

const THEMES = ["system", "light", "dark"];
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
  try { localStorage.setItem("shoal-theme", name); } catch { /* a browser without storage forgets it */ }
}

function start() {
  document.getElementById("views").replaceChildren(...Object.entries(VIEWS).map(([name, view]) => el("li", {}, el("a", { href: `#${name}`, "data-view": name }, view.title))));
  let chosen = "system";
  try { chosen = localStorage.getItem("shoal-theme") || "system"; } catch { /* as above */ }
  theme(THEMES.includes(chosen) ? chosen : "system");
  document.getElementById("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || "system";
    theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  });
  document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  window.addEventListener("hashchange", () => show(true));
  if (token) {
    history.replaceState(null, "", location.pathname);
    signIn(token).then((right) => (right ? begin() : askForToken(true)), failed);
  } else begin();
}

main.replaceChildren(empty("Reading the run."));
start();
