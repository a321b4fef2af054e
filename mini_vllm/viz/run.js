// One run, unpacked: what every request did in every step. Knows the data's form (player_data.py); draws nothing.
"use strict";
const $ = id => document.getElementById(id);
const D = JSON.parse($("data").textContent);

// "1-4,9" → [1, 2, 3, 4, 9]
function numbers(text) {
  return !text ? [] : text.split(",").flatMap(part => {
    const [from, to = from] = part.split("-").map(Number);
    return Array.from({length: to - from + 1}, (_, k) => from + k);
  });
}
// "2:a;3:b" → ["", "", "a", "a", "a", "b", …], n entries: steps since the last change, then the value. A value that
// begins with + or - edits the list before it. Each value is read once, and all its steps share what was read.
function series(text, n, read = value => value) {
  const out = new Array(n);
  let raw = "", value = read(""), at = 0, done = 0;
  for (const turn of text ? text.split(";") : []) {
    const colon = turn.indexOf(":");
    at += Number(turn.slice(0, colon));
    out.fill(value, done, at);
    done = at;
    raw = edit(raw, turn.slice(colon + 1));
    value = read(raw);
  }
  return out.fill(value, done);
}
function edit(raw, change) {
  if (change[0] === "+") return raw + "," + change.slice(1);
  if (change[0] !== "-") return change;
  const [gone, more] = change.slice(1).split("+");
  const left = raw.split(",").slice(gone);
  return left.join(",") + (more ? (left.length ? "," : "") + more : "");
}
const CODES = new Map();
function readCell(code) {
  if (!code) return null;
  if (!CODES.has(code))
    CODES.set(code, {kind: code[0], n: parseInt(code.slice(1)) || 0, resumed: code.includes("r"),
                     done: code.includes("f", 1), out: code.includes("o"), back: code.includes("b")});
  return CODES.get(code);
}
function readLane(lane, k, n) {
  const cells = series(lane.cells, n, readCell), known = new Array(n);
  const jumps = new Map((lane.jumps || "").split(";").filter(Boolean).map(jump => jump.split(":").map(Number)));
  let computed = 0;
  for (let i = 0; i < n; i++) {                   // tokens in the KV cache after each step
    const cell = cells[i];
    if (cell && cell.kind === "x" && !cell.out) computed = 0;
    if (cell && cell.n) computed = (jumps.size && jumps.has(i) ? jumps.get(i) : computed) + cell.n;
    known[i] = computed;
  }
  return {label: lane.id, text: "", prompt: "", ...lane, k, cells, known, color: "c" + k % 7,
          blocks: series(lane.blocks, n, numbers), counts: series(lane.counts, n, Number),
          cuts: readCuts(lane.cuts, n), end: cells.findIndex(cell => cell && cell.done)};
}
// Length of a lane's text after each step; the data has what each step adds.
function readCuts(text, n) {
  const out = new Array(n);
  let total = 0, at = -1, done = 0;
  for (const turn of text ? text.split(";") : []) {
    const [length, gap = 1] = turn.split(":").map(Number).reverse();
    at += gap;
    out.fill(total, done, at);
    done = at;
    total += length;
  }
  return out.fill(total, done);
}
function readRun(data) {
  const steps = numbers(data.steps), n = steps.length;
  const lanes = data.lanes.map((lane, k) => readLane(lane, k, n));
  const clauses = series(data.say, n, ids => ids.split(",").map(id => data.words[id]).join("; ") + ".");
  return {...data, steps, n, lanes, says: clauses, at: 0,
          waiting: series(data.waiting, n, numbers), running: series(data.running, n, numbers),
          free: series(data.free, n), hashed: series(data.hashed, n, numbers), skips: series(data.skips, n),
          whys: series(data.why, n, id => data.words[id] || ""), counts: series(data.pool, n, numbers),
          events: Object.fromEntries(data.events.map(([kind, at]) => [kind, numbers(at)]))};
}
const runs = D.runs.map(readRun), PAIR = runs.length > 1;

// ---- the clock that all runs share: by step, or by the time at which their steps ended ----
const TIMED = D.lock === "time";
const ends = run => run.times.map(([, end]) => end);
const clock = [...new Set(runs.flatMap(run => TIMED ? ends(run) : run.steps))].sort((a, b) => a - b);
const M = clock.length;
for (const run of runs) {
  let i = -1;
  run.moments = clock.map(now => {                // index of the last step that is due at each moment, or -1
    while (i + 1 < run.n && (TIMED ? run.times[i + 1][1] : run.steps[i + 1]) <= now) i++;
    return i;
  });
}
const momentOf = (run, i) => run.moments.findIndex(at => at >= i);

// ---- small builders: text goes in as text nodes only, never as markup ----
function build(node, attributes, children) {
  for (const name in attributes) if (attributes[name] != null) node.setAttribute(name, attributes[name]);
  node.append(...children.filter(child => child != null));
  return node;
}
const html = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
