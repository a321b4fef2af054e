// Request lanes: a row a request, a column a step. A cell = the owner's colour + a shape for what happened.
"use strict";
const MOST_ROWS = 2;                             // lines of text under a lane
const STATE = {w: "waiting", s: "swapped out, waiting", p: "prefill", c: "recompute", d: "decode",
               i: "running, not scheduled", x: "evicted (preempted)", a: "aborted"};

// Diagonal lines clipped to a box by arithmetic: no pattern ids, so that many players can share a page.
function hatch(x, y, w, h, back) {
  let d = "";
  for (let c = 3; c < w + h; c += 5) {
    const x1 = Math.max(0, c - h), x2 = Math.min(c, w);
    const [a, b] = back ? [w - x1, w - x2] : [x1, x2];
    d += `M${x + a} ${y + c - x1}L${x + b} ${y + c - x2}`;
  }
  return svg("path", {d, class: "hatch"});
}
const SIGNS = {check: (x, y) => `M${x - 4} ${y}l3 3.5 5.5-7`, cross: (x, y) => `M${x - 4.5} ${y - 4.5}l9 9m0-9l-9 9`,
               again: (x, y) => `M${x + 4} ${y - 3}a5 5 0 1 0 1 4M${x + 4.8} ${y - 6.5}v4h-4`,
               stop: (x, y) => `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0-10 0M${x - 3.5} ${y + 3.5}l7-7`,
               out: (x, y) => `M${x} ${y - 5.5}v10m-4-4l4 4 4-4`, back: (x, y) => `M${x} ${y + 5.5}v-10m-4 4l4-4 4 4`};
function sign(kind, x, y, halo) {
  const d = SIGNS[kind](x, y), node = svg("path", {d, class: "sign"});
  return halo ? svg("g", {}, svg("path", {d, class: "halo"}), node) : node;
}
// `steps` > 1: one drawing for a stretch of equal steps, in rows too thin for more.
function drawCell(cell, x, w, height, color, label, steps = 1) {
  const top = height > 20 ? 2.5 : 1.5, h = height - 2 * top, mid = x + w / 2, y = top + h / 2, kind = cell.kind;
  const g = svg("g", {class: `cell ${kind} ${color}`}, label && svg("title", {}, label));
  if (kind === "w" || kind === "s") {
    g.append(svg("path", {d: `M${x + 1} ${y}H${x + w}`, class: "wait"}));
    return g;
  }
  if (kind !== "a") g.append(svg("rect", {x: x + 1, y: top, width: w - 2, height: h, rx: 2.5, class: "box"}));
  const work = kind === "p" || kind === "c";
  if (work) g.append(hatch(x + 1, top, w - 2, h, kind === "c"));
  if (kind === "x") g.append(sign(cell.out ? "out" : "cross", mid, y));
  else if (kind === "a") g.append(sign("stop", mid, y));
  else if (cell.done) g.append(sign("check", mid, y, work));
  else if (cell.resumed) g.append(sign(cell.back ? "back" : "again", mid, y, work));
  else if (steps > 1) { /* no room for the single steps */ }
  else if (kind === "d" && cell.n < 2) g.append(svg("circle", {cx: mid, cy: y, r: height > 20 ? 2.4 : 1.6, class: "pip"}));
  else if (cell.n && String(cell.n).length * 7 < w && height > 11) g.append(svg("text", {x: mid, y: y + 4}, cell.n));
  return g;
}
function tell(run, lane, i) {
  const cell = lane.cells[i];
  if (!cell) return "";
  const tokens = cell.n ? ` ${cell.n} token${cell.n === 1 ? "" : "s"}, ${lane.known[i]} computed` : "";
  const marks = (cell.back ? ", swapped in" : cell.resumed ? ", resumed" : "") + (cell.out ? ", swapped out" : "") +
                (cell.done ? ", finished" : "");
  return `${lane.id}, step ${run.steps[i]}: ${STATE[cell.kind]}${tokens}${marks}`;
}

// "33+40": tokens of the prompt, and how many new ones there may be.
const sizeOf = lane => lane.p == null ? "" : lane.m == null ? `${lane.p}` : `${lane.p}+${lane.m}`;
const sizeInWords = lane => `a prompt of ${lane.p} tokens` + (lane.m == null ? "" : ` + at most ${lane.m} new tokens`);

// One row a request; the parts that change are kept in lane.parts.
function layLanes(run) {
  const box = run.box.lanes, axis = svg("svg", {height: 20, "aria-hidden": "true"}), now = html("div", {class: "now"});
  const talk = run.lanes.some(lane => lane.text || lane.prompt), crowd = run.lanes.length > CROWD;
  const height = crowd ? 13 : 24, inner = box.clientWidth;      // read once: each reading would lay the page out
  box.classList.toggle("crowd", crowd);
  box.replaceChildren(now, html("div", {class: "axis"}, html("span"), axis));
  if (!run.lanes.length) box.append(html("p", {class: "none"}, "No request came in during this run."));
  for (const lane of run.lanes) {
    const bar = html("span"), state = html("span", {class: "sr"}), size = sizeOf(lane);
    const cells = svg("g"), veil = svg("rect", {class: "veil", y: 0, height});
    const picture = svg("svg", {height, "aria-hidden": "true"}, cells, veil);
    const total = lane.p == null ? 0 : lane.p + (lane.m || 0);
    const title = lane.id + (size ? `: ${size} = ${sizeInWords(lane)}` : "");
    const mark = total ? html("u", {style: `left:${100 * lane.p / total}%`}) : null;
    const fill = total && !crowd ? html("div", {class: "fill"}, bar, mark) : null;
    const name = html("div", {class: "name", title}, html("span", {class: "dot"}), html("b", {}, lane.label), " ",
                      html("i", {}, size), state, fill);
    const text = talk ? html("div", {class: "text"}) : null;
    const cut = talk ? html("span", {class: "cut", "aria-hidden": "true"}, "…") : null;
    const row = html("div", {class: `lane ${lane.color}`}, name, picture, text, cut);
    const letters = lane.text.length + lane.prompt.length + 4;
    const fits = (inner - (inner < 500 ? 8 : 112)) / 7.2;
    const rows = run.lanes.length > 8 ? 1 : Math.min(MOST_ROWS, Math.ceil(letters / fits));
    row.style.setProperty("--rows", rows);
    row.classList.toggle("one", rows === 1);
    picture.addEventListener("click", event => jump(run, event, picture));
    name.addEventListener("click", () => ask(run, lane.k));
    lane.parts = {row, bar, picture, cells, veil, state, text, cut, total, drawn: ""};
    box.append(row);
  }
  axis.addEventListener("click", event => jump(run, event, axis));
  const room = axis.getBoundingClientRect().width || 300;
  const cellWidth = crowd ? Math.max(12, room / run.n) : room / run.n >= 17 ? Math.min(32, room / run.n) : room < 420 ? 24 : 25;
  run.view = {axis, now, talk, height, cellWidth, first: 0, columns: Math.min(run.n, Math.floor(room / cellWidth))};
  const rows = run.lanes.map(lane => lane.parts.row), last = rows[rows.length - 1];
  Object.assign(run.view, {top: last ? rows[0].offsetTop : 0, pitch: last ? rows[0].offsetHeight : 1,
                           bottom: last ? last.offsetTop + last.offsetHeight : 0});
  // Measured once, for a reading between two changes would make the browser lay out the page in the middle of a step.
  const edge = box.getBoundingClientRect().left;
  Object.assign(run.view, {left: axis.getBoundingClientRect().left - edge, seen: box.clientHeight, scroll: box.scrollTop});
  box.onscroll = () => { run.view.scroll = box.scrollTop; drawRows(run); };
  if (box.scrollHeight > box.clientHeight) box.tabIndex = 0;     // it scrolls, so the keyboard must reach it
  else box.removeAttribute("tabindex");
}
function jump(run, event, picture) {
  const {first, columns, cellWidth} = run.view;
  const i = first + Math.floor((event.clientX - picture.getBoundingClientRect().left) / cellWidth);
  if (i < Math.min(run.n, first + columns)) step(momentOf(run, i));
}

function drawLanes(run) {
  const {view, at} = run, {columns, cellWidth, axis} = view, box = run.box.lanes;
  let first = at < view.first ? Math.max(0, at - Math.floor(columns * .7)) : view.first;
  if (at >= first + columns - 1) first = at - Math.floor(columns * .4);
  view.first = first = Math.max(0, Math.min(first, run.n - columns));
  const marks = [];
  for (let i = first; i < first + columns; i++) {
    const here = i === at, x = Math.max(here ? 14 : 0, (i - first) * cellWidth + cellWidth / 2);
    if (here) marks.push(svg("rect", {x: x - 14, y: 1, width: 28, height: 17, rx: 4, class: "tab"}));
    if (here || (run.steps[i] % 5 === 0 && Math.abs(i - at) * cellWidth > 30 && x > 10))
      marks.push(svg("text", {x, y: 13.5, class: here ? "here" : null}, run.steps[i]));
  }
  axis.replaceChildren(...marks);
  for (const lane of run.lanes) {
    const {row, bar, state, total} = lane.parts, now = lane.cells[at];
    const holds = now && "pcdi".includes(now.kind) ? lane.known[at] : 0;
    bar.style.width = total ? `${Math.min(100, 100 * holds / total)}%` : "0";
    const words = now ? `${STATE[now.kind]}, ${holds} tokens in the KV cache` : "not in the system";
    if (state.textContent !== words) state.textContent = words;
    row.classList.toggle("done", lane.end >= 0 && lane.end <= at);
    row.classList.toggle("out", !now || "wsx".includes(now.kind));
  }
  Object.assign(view.now.style, {left: `${view.left + (at - first) * cellWidth}px`,
                                 width: `${cellWidth}px`, height: `${view.bottom}px`});
  if (run.lanes.length > 8) scrollToBusy(run, box);
  drawRows(run);
}
function scrollToBusy(run, box) {
  const busy = run.lanes.filter(lane => lane.cells[run.at] && lane.cells[run.at].n), {top, pitch, scroll, seen} = run.view;
  const inSight = lane => top + lane.k * pitch >= scroll + 20 && top + (lane.k + 1) * pitch <= scroll + seen;
  if (busy.length && !busy.some(inSight)) box.scrollTop = run.view.scroll = Math.max(0, top + busy[0].k * pitch - 24);
}
// Only rows in sight are drawn, and their cells only when the window has moved; a step moves just the veil.
function drawRows(run) {
  const {at} = run, {first, columns, cellWidth, top, pitch, height, scroll, seen} = run.view;
  const many = run.lanes.length > 8;
  const from = many ? Math.max(0, Math.floor((scroll - top) / pitch) - 1) : 0;
  const to = many ? Math.ceil((scroll + seen - top) / pitch) + 1 : run.lanes.length;
  const x = (at + 1 - first) * cellWidth;
  for (const lane of run.lanes.slice(from, to)) {
    const {row, cells, veil, text, cut} = lane.parts, key = `${first}/${columns}`;
    if (lane.parts.drawn !== key) {
      cells.replaceChildren(...(height < 20 ? thinCells : wideCells)(run, lane));
      lane.parts.drawn = key;
    }
    veil.setAttribute("x", x);
    veil.setAttribute("width", Math.max(0, columns * cellWidth - x));
    if (text) {
      drawText(run, lane, text, row.classList.contains("done") || lane.cells[at]);
      cut.toggleAttribute("hidden", !text.scrollTop && !text.scrollLeft);
    }
  }
}
function wideCells(run, lane) {
  const {first, columns, cellWidth, height} = run.view, out = [];
  for (let i = first; i < first + columns; i++) {
    if (lane.cells[i])
      out.push(drawCell(lane.cells[i], (i - first) * cellWidth, cellWidth, height, lane.color, tell(run, lane, i)));
  }
  return out;
}
// The words a user has seen so far; the newest piece is lit. A preemption takes the KV away, not the words.
function drawText(run, lane, box, here) {
  const end = run.begun ? lane.cuts[run.at] : 0, start = (run.at && lane.cuts[run.at - 1]) || 0;
  box.replaceChildren();
  if (here && lane.prompt) box.append(html("span", {class: "ask"}, lane.prompt.trim() + (end ? " → " : "")));
  box.append(...visible(lane.text.slice(0, start)));
  if (end > start) box.append(html("span", {class: "new"}, ...visible(lane.text.slice(start, end))));
  if (here && lane.text) box.append(html("span", {class: "caret", "aria-hidden": "true"}));
  box.scrollTop = box.scrollHeight;                               // of a long text the end is shown
  box.scrollLeft = box.scrollWidth;
}
function visible(text) {
  const turn = () => html("span", {class: "nl", "aria-hidden": "true"}, "⏎");
  return text.split("\n").flatMap((part, k) => k ? [turn(), " " + part] : [part]);
}
