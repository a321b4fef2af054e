// The player's state and its controls. Pictures: lanes.js (requests × steps), panels.js (queues, gauges, blocks).
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// ---- data: every series is "steps since the last change:value;…" (timeline.py, changes()) ----
// "1-4,9" → [1, 2, 3, 4, 9]
function numbers(text) {
  return !text ? [] : text.split(",").flatMap(part => {
    const [from, to = from] = part.split("-").map(Number);
    return Array.from({length: to - from + 1}, (_, k) => from + k);
  });
}
D.steps = numbers(D.steps);
const N = D.steps.length;
let cur = Math.min(Math.max(D.start, 0), N - 1), timer = 0;
function series(text) {
  const out = [];
  let value = "", at = 0;
  for (const turn of text ? text.split(";") : []) {
    const [gap, next] = turn.split(":");
    at += Number(gap);
    while (out.length < at) out.push(value);
    value = next[0] === "+" ? value + "," + next.slice(1) : next;
  }
  while (out.length < N) out.push(value);
  return out;
}
function readCell(code) {
  return code && {kind: code[0], n: parseInt(code.slice(1)) || 0, resumed: code.includes("r"), done: code.includes("f")};
}
const lanes = D.lanes.map((lane, k) => {
  const cells = series(lane.cells).map(readCell);
  const jumps = new Map((lane.jumps || "").split(";").filter(Boolean).map(j => j.split(":").map(Number)));
  let computed = 0;
  const known = cells.map((cell, i) => {          // tokens in the KV cache after each step
    if (cell && cell.kind === "x") computed = 0;
    if (cell && cell.n) computed = (jumps.has(i) ? jumps.get(i) : computed) + cell.n;
    return computed;
  });
  return {...lane, k, cells, known, color: "c" + k % 7, blocks: series(lane.blocks).map(numbers),
          counts: series(lane.counts), cuts: series(lane.cuts).map(Number)};
});
const waiting = series(D.waiting), running = series(D.running), free = series(D.free);
const says = series(D.say).map(k => D.words[k]), whys = series(D.why).map(k => D.words[k] || "");
const hashed = series(D.hashed).map(numbers);

// ---- small builders: text goes in as text nodes only, never as markup ----
function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) if (value != null) node.setAttribute(name, value);
  node.append(...children.filter(child => child != null));
  return node;
}
const html = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// ---- moving through the run ----
function go(step) {
  cur = Math.min(Math.max(step, 0), N - 1);
  $("scrub").value = cur;
  $("scrub").setAttribute("aria-valuetext", `step ${D.steps[cur]}`);
  $("clock").replaceChildren("step ", html("b", {}, D.steps[cur]), ` · ${cur + 1} of ${N}`,
                             D.times && D.times[cur] != null ? ` · ${D.times[cur]} ms` : "");
  $("say").replaceChildren(html("b", {}, `step ${D.steps[cur]}: `), says[cur]);
  $("why").textContent = whys[cur];
  drawLanes();
  drawPanels();
  for (const [id, off] of [["first", cur === 0], ["back", cur === 0], ["next", cur === N - 1], ["last", cur === N - 1]])
    $(id).setAttribute("aria-disabled", off);                    // not `disabled`: that would drop the focus
  grow();
}
function play(on) {
  clearInterval(timer);
  timer = 0;
  if (on) {
    if (cur === N - 1) go(0);
    timer = setInterval(() => { if (cur < N - 1) go(cur + 1); if (cur === N - 1) play(false); }, $("speed").value);
  }
  $("story").setAttribute("aria-live", on ? "off" : "polite");   // a running film is not read out step by step
  const button = $("play");
  button.setAttribute("aria-label", on ? "Pause" : "Play");
  button.title = (on ? "Pause" : "Play") + " (space)";
  button.firstChild.firstChild.setAttribute("d", on ? ICONS.pause : ICONS.play);
}
const step = to => { play(false); go(to); };
const nextEvent = () => step(D.events.find(i => i > cur) ?? N - 1);

const ICONS = {first: "M2.5 2h2.5v12H2.5zM14 2v12L6 8z", back: "M11 2v12L3.5 8z",
               play: "M4 2l9.5 6L4 14z", pause: "M3.5 2h3.5v12H3.5zM9 2h3.5v12H9z",
               next: "M5 2l7.5 6L5 14z", last: "M11 2h2.5v12H11zM2 2l8 6-8 6z"};
const BUTTONS = [["first", "First step", "Home", () => step(0)], ["back", "Step back", "ArrowLeft", () => step(cur - 1)],
                 ["play", "Play", "Space", () => play(!timer)],
                 ["next", "Step forward", "ArrowRight", () => step(cur + 1)],
                 ["last", "Last step", "End", () => step(N - 1)]];
for (const [id, label, key, act] of BUTTONS) {
  const icon = svg("svg", {viewBox: "0 0 16 16", "aria-hidden": "true"}, svg("path", {d: ICONS[id]}));
  const button = html("button", {id, type: "button", "aria-label": label, "aria-keyshortcuts": key,
                                 title: `${label} (${key})`}, icon);
  button.addEventListener("click", act);
  $("buttons").append(button);
}
$("event").addEventListener("click", nextEvent);
$("scrub").addEventListener("input", () => step(Number($("scrub").value)));
$("speed").addEventListener("change", () => { if (timer) play(true); });

const KEYS = {ArrowLeft: () => step(cur - 1), ArrowRight: () => step(cur + 1), Home: () => step(0), End: () => step(N - 1),
              " ": () => play(!timer), n: nextEvent};
document.addEventListener("keydown", event => {
  const act = KEYS[event.key], tag = event.target.tagName;
  if (!act || tag === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " " && tag === "BUTTON") return;             // space presses the focused button
  event.preventDefault();
  act();
});

// ---- theme: the page's own (Sphinx, JupyterLab, VS Code), else the system's ----
function pageTheme() {
  try {
    const page = parent !== window && parent.document, root = page.documentElement, body = page.body;
    if (["dark", "light"].includes(root.dataset.theme)) return root.dataset.theme;
    if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
    if (body.classList.contains("vscode-dark")) return "dark";
  } catch { /* another origin (Colab): not ours to read */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
const paint = () => { document.documentElement.dataset.look = pageTheme(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
try {
  const watch = new MutationObserver(paint), page = parent !== window && parent.document;
  for (const node of [page.documentElement, page.body])
    watch.observe(node, {attributes: true, attributeFilter: ["data-theme", "data-jp-theme-light", "class"]});
  const host = frameElement.closest(".text_html");               // Sphinx puts a pale frame around HTML in dark mode
  if (host) { host.style.background = "transparent"; host.style.padding = "0"; }
} catch { /* stand-alone page or another origin */ }

// ---- height: take what the content needs; on stepping only grow, so that the page under the player keeps still ----
function fit(exact) {
  if (!D.fit) return;
  try {
    const need = $("app").offsetHeight + 1, frame = frameElement;
    if (frame && (exact || need > frame.clientHeight)) frame.style.height = need + "px";
  } catch { /* another origin: the height attribute stands */ }
}
const grow = () => fit(false);
let width = 0;
function layout() {
  if ($("app").clientWidth === width) return;
  width = $("app").clientWidth;
  if (!width) return;
  layLanes();
  go(cur);
  fit(true);
}

$("title").textContent = D.title;
$("about").textContent = D.about;
$("scrub").max = N - 1;
document.body.classList.toggle("hide", D.future === "hide");
