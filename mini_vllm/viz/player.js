// The player's state and its controls. Pictures: overview.js, lanes.js, panels.js, blocks.js.
"use strict";
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let cur = Math.min(Math.max(D.start, 0), M - 1), timer = 0;

// ---- one side per run: label, lanes, panels ----
runs.forEach((run, k) => {
  run.k = k;
  run.label = D.labels ? D.labels[k] : "";
  const part = (look, name) => html("section", {class: look, "aria-label": PAIR ? `${run.label}: ${name}` : name});
  const queues = part("queues", "Queues"), kv = part("kv", "KV cache");
  const lanes = part("lanes", "Request lanes: one row a request, one column a step");
  const both = html("div", {class: "panels"}, queues, kv);
  const panels = PAIR ? html("details", {open: D.panels && innerWidth > 520 ? "" : null}, html("summary", {}, `queues and KV blocks: ${run.label}`), both)
    : both;
  const place = html("b", {class: "place"}), alike = runs.every(other => other.about === run.about);
  const head = PAIR ? html("h2", {}, html("span", {class: "whose"}, run.label), place,
                                      alike ? null : html("span", {class: "about"}, run.about)) : null;
  const side = html("section", {class: "side", "aria-label": run.label || null}, head, lanes, panels);
  run.box = {side, queues, kv, lanes, panels, place};
  run.map = buildMap(run);
  if (!run.blocks && !run.has_blocks) kv.hidden = true;
  $("sides").append(side);
  $("maps").append(...PAIR ? [html("span", {class: "mapname", "aria-hidden": "true"}, run.label)] : [], run.map);
  panels.addEventListener("toggle", () => {
    for (const other of runs) if (other.box.panels.open !== panels.open) other.box.panels.open = panels.open;
    run.room = 0;
    drawPanels(run);
    fit(true);
  });
});
document.body.classList.toggle("two", PAIR);

// ---- moving through the run ----
function go(moment) {
  cur = Math.min(Math.max(moment, 0), M - 1);
  for (const run of runs) {
    run.at = Math.max(0, run.moments[cur]);
    run.begun = run.moments[cur] >= 0;
    run.over = run.at === run.n - 1 && clock[cur] > (TIMED ? run.times[run.at][1] : run.steps[run.at]);
    if (PAIR) run.box.place.textContent = placeOf(run);
    run.box.side.classList.toggle("over", run.over);
    drawLanes(run);
    drawPanels(run);
    drawMap(run);
  }
  drawStory();
  $("scrub").value = TIMED ? clock[cur] : cur;
  $("scrub").setAttribute("aria-valuetext", TIMED ? `${seconds(clock[cur])} seconds` : `step ${clock[cur]}`);
  const ms = !PAIR && runs[0].times && runs[0].times[cur].every(t => t != null) ?
    ` · ${(1000 * (runs[0].times[cur][1] - runs[0].times[cur][0])).toFixed(1)} ms` : "";
  $("clock").replaceChildren(...TIMED ? [html("b", {}, seconds(clock[cur])), ` of ${seconds(clock[M - 1])} s`] :
    [html("span", {class: "wide"}, "step "), html("b", {}, clock[cur]), ` · ${cur + 1} of ${M.toLocaleString("en")}${ms}`]);
  for (const [id, off] of [["first", cur === 0], ["back", cur === 0], ["next", cur === M - 1], ["last", cur === M - 1]])
    $(id).setAttribute("aria-disabled", off);                    // not `disabled`: that would drop the focus
}
const seconds = t => t.toFixed(2);
function placeOf(run) {
  const done = run.at === run.n - 1 && run.begun;
  if (TIMED && done) return `done after ${seconds(run.times[run.n - 1][1])} s, ${run.n} steps`;
  if (run.over) return `done after ${run.n} steps`;
  return TIMED ? `${run.moments[cur] + 1} of ${run.n} steps done` : "";
}
// The sentence of the step; of a pair each its own, or one where both did the same.
function drawStory() {
  const told = runs.map(run => [run.over ? "done." : run.says[run.at], run.over ? "" : answer(run)]);
  const same = PAIR && !TIMED && told[0].join() === told[1].join();
  const rows = (same ? told.slice(0, 1) : told).flatMap(([say, why], k) => {
    const number = TIMED ? `step ${runs[k].steps[runs[k].at]}` : `step ${clock[cur]}`;
    const who = !PAIR ? `${number}: ` : same ? `${number}, both: ` : `${runs[k].label}, ${number}: `;
    return [html("p", {class: "say"}, html("b", {}, who), say), html("p", {class: "why"}, why || "")];
  });
  $("story").replaceChildren(...rows);
}
function momentAt(time) {
  let at = 0;
  while (at + 1 < M && clock[at + 1] <= time) at++;
  return at;
}
// A step takes 0.8 s at speed 1; locked by time, a second takes a second.
function play(on) {
  clearInterval(timer);
  timer = 0;
  if (on) {
    if (cur === M - 1) go(0);
    const from = TIMED ? clock[cur] : cur, began = performance.now(), rate = $("speed").value / (TIMED ? 1000 : 800);
    timer = setInterval(() => {
      const now = from + (performance.now() - began) * rate, to = TIMED ? momentAt(now) : Math.min(M - 1, Math.floor(now));
      if (to > cur) go(to);
      if (cur === M - 1) play(false);
    }, 30);
  }
  $("story").setAttribute("aria-live", on ? "off" : "polite");   // a running film is not read out step by step
  const button = $("play");
  button.setAttribute("aria-label", on ? "Pause" : "Play");
  button.title = (on ? "Pause" : "Play") + " (space)";
  button.firstChild.firstChild.setAttribute("d", on ? ICONS.pause : ICONS.play);
}
const step = to => { play(false); go(to); };

// ---- events: of all runs, by kind ----
const KINDS = {};
for (const run of runs)
  for (const [kind, at] of Object.entries(run.events)) KINDS[kind] = [...KINDS[kind] || [], ...at.map(i => momentOf(run, i))];
if (D.verdict && D.verdict.moment != null) KINDS["first divergence"] = [D.verdict.moment];
for (const kind in KINDS) {
  KINDS[kind].sort((a, b) => a - b);
  $("kind").append(html("option", {value: kind}, kind === "any" ? "event" : kind));
}
const nextEvent = () => step(KINDS[$("kind").value].find(i => i > cur) ?? M - 1);
const lastEvent = () => step(KINDS[$("kind").value].findLast(i => i < cur) ?? 0);

// ---- controls ----
const ICONS = {first: "M2.5 2h2.5v12H2.5zM14 2v12L6 8z", back: "M11 2v12L3.5 8z",
               play: "M4 2l9.5 6L4 14z", pause: "M3.5 2h3.5v12H3.5zM9 2h3.5v12H9z",
               next: "M5 2l7.5 6L5 14z", last: "M11 2h2.5v12H11zM2 2l8 6-8 6z",
               "last-event": "M10.5 3.5L6 8l4.5 4.5", "next-event": "M5.5 3.5L10 8l-4.5 4.5",
               link: "M6.5 9.5l3-3M7 4.5l1.7-1.7a3 3 0 0 1 4.3 4.3L11.3 8.8M9 11.5l-1.7 1.7a3 3 0 0 1-4.3-4.3L4.7 7.2"};
const BUTTONS = [["first", "First step", "Home", () => step(0), "buttons"],
                 ["back", "Step back", "ArrowLeft", () => step(cur - 1), "buttons"],
                 ["play", "Play", "Space", () => play(!timer), "buttons"],
                 ["next", "Step forward", "ArrowRight", () => step(cur + 1), "buttons"],
                 ["last", "Last step", "End", () => step(M - 1), "buttons"],
                 ["next-event", "Next event", "n", nextEvent, "events"],
                 ["link", "Link to this step", "l", () => copyLink(), "controls"]];
function button(id, label, key, act) {
  const icon = svg("svg", {viewBox: "0 0 16 16", "aria-hidden": "true"}, svg("path", {d: ICONS[id]}));
  const node = html("button", {id, type: "button", "aria-label": label, "aria-keyshortcuts": key,
                               title: `${label} (${key})`}, icon);
  node.addEventListener("click", act);
  return node;
}
for (const [id, label, key, act, place] of BUTTONS) $(place).append(button(id, label, key, act));
$("events").prepend(button("last-event", "Previous event", "p", lastEvent));
$("scrub").addEventListener("input", () => step(TIMED ? momentAt(Number($("scrub").value)) : Number($("scrub").value)));
$("speed").addEventListener("change", () => { if (timer) play(true); });
function faster(by) {
  const speed = $("speed");
  speed.selectedIndex = Math.min(speed.options.length - 1, Math.max(0, speed.selectedIndex + by));
  if (timer) play(true);
}
const KEYS = {ArrowLeft: () => step(cur - 1), ArrowRight: () => step(cur + 1), PageUp: () => step(cur - 10),
              PageDown: () => step(cur + 10), Home: () => step(0), End: () => step(M - 1), " ": () => play(!timer),
              n: nextEvent, p: lastEvent, "+": () => faster(1), "-": () => faster(-1), l: () => copyLink(),
              d: () => D.verdict && D.verdict.moment != null && step(D.verdict.moment)};
document.addEventListener("keydown", event => {
  const act = KEYS[event.key], tag = event.target.tagName, typing = tag === "SELECT" || event.target.id === "address";
  if (!act || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " " && ["BUTTON", "SUMMARY"].includes(tag)) return;   // space presses what has the focus
  event.preventDefault();
  act();
});
