// Request lanes and the overview above the slider. A cell = the owner's colour + a shape for what happened.
"use strict";
const CELL_H = 24, MOST_ROWS = 2;
let first = 0, columns = 1, cellWidth = 22;
const TALK = lanes.some(lane => lane.text || lane.prompt);
const STATE = {w: "waiting", p: "prefill", c: "recompute", d: "decode", i: "running, not scheduled", x: "preempted",
               a: "aborted"};

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
function sign(kind, x, y, halo) {
  const d = {check: `M${x - 4} ${y}l3 3.5 5.5-7`, cross: `M${x - 4.5} ${y - 4.5}l9 9m0-9l-9 9`,
             again: `M${x + 4} ${y - 3}a5 5 0 1 0 1 4M${x + 4.8} ${y - 6.5}v4h-4`,
             stop: `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0-10 0M${x - 3.5} ${y + 3.5}l7-7`}[kind];
  const node = svg("path", {d, class: "sign"});
  return halo ? svg("g", {}, svg("path", {d, class: "halo"}), node) : node;
}
function drawCell(cell, x, w, color, label) {
  const top = 2.5, h = CELL_H - 5, mid = x + w / 2, y = top + h / 2, kind = cell.kind;
  const g = svg("g", {class: `cell ${kind} ${color}`}, label && svg("title", {}, label));
  if (kind === "w") {
    g.append(svg("path", {d: `M${x + 1} ${y}H${x + w}`, class: "wait"}));
    return g;
  }
  if (kind !== "a") g.append(svg("rect", {x: x + 1, y: top, width: w - 2, height: h, rx: 2.5, class: "box"}));
  const work = kind === "p" || kind === "c";
  if (work) g.append(hatch(x + 1, top, w - 2, h, kind === "c"));
  if (kind === "x") g.append(sign("cross", mid, y));
  else if (kind === "a") g.append(sign("stop", mid, y));
  else if (cell.done) g.append(sign("check", mid, y, work));
  else if (cell.resumed) g.append(sign("again", mid, y, work));
  else if (kind === "d" && cell.n < 2) g.append(svg("circle", {cx: mid, cy: y, r: 2.4, class: "pip"}));
  else if (cell.n && String(cell.n).length * 7 < w) g.append(svg("text", {x: mid, y: y + 4}, cell.n));
  return g;
}
function tell(lane, i) {
  const cell = lane.cells[i];
  if (!cell) return "";
  const tokens = cell.n ? ` ${cell.n} token${cell.n === 1 ? "" : "s"}, ${lane.known[i]} computed` : "";
  const marks = (cell.resumed ? ", resumed" : "") + (cell.done ? ", finished" : "");
  return `${lane.id}, step ${D.steps[i]}: ${STATE[cell.kind]}${tokens}${marks}`;
}

// "33+40": tokens of the prompt, and how many new ones there may be.
const sizeOf = lane => lane.p == null ? "" : lane.m == null ? `${lane.p}` : `${lane.p}+${lane.m}`;
const sizeInWords = lane => `a prompt of ${lane.p} tokens` + (lane.m == null ? "" : ` + at most ${lane.m} new tokens`);

// One row a request; the parts that change are kept in lane.parts.
function layLanes() {
  const box = $("lanes"), axis = svg("svg", {height: 20, "aria-hidden": "true"});
  box.replaceChildren(html("div", {id: "now"}), html("div", {class: "axis"}, html("span"), axis));
  box.axis = axis;
  for (const lane of lanes) {
    const bar = html("span"), state = html("span", {class: "sr"});
    const picture = svg("svg", {height: CELL_H, "aria-hidden": "true"});
    const size = sizeOf(lane);
    const total = lane.p == null ? 0 : lane.p + (lane.m || 0);
    const title = lane.id + (size ? `: ${size} = ${sizeInWords(lane)}` : "");
    const fill = total ? html("div", {class: "fill"}, bar, html("u", {style: `left:${100 * lane.p / total}%`})) : null;
    const name = html("div", {class: "name", title}, html("span", {class: "dot"}), html("b", {}, lane.label), " ",
                      html("i", {}, size), state, fill);
    const text = TALK ? html("div", {class: "text"}) : null;
    const mark = TALK ? html("span", {class: "cut", "aria-hidden": "true"}, "…") : null;
    const row = html("div", {class: `lane ${lane.color}`}, name, picture, text, mark);
    const letters = lane.text.length + (lane.prompt || "").length + 4;
    const fits = (box.clientWidth - (box.clientWidth < 500 ? 8 : 112)) / 7.2;
    const rows = lanes.length > 8 ? 1 : Math.min(MOST_ROWS, Math.ceil(letters / fits));
    row.style.setProperty("--rows", rows);
    row.classList.toggle("one", rows === 1);
    picture.addEventListener("click", event => jump(event, picture));
    lane.parts = {row, bar, picture, state, text, mark, total};
    box.append(row);
  }
  axis.addEventListener("click", event => jump(event, axis));
  const room = axis.getBoundingClientRect().width || 300;
  cellWidth = room / N >= 17 ? Math.min(32, room / N) : room < 420 ? 24 : 25;
  columns = Math.min(N, Math.floor(room / cellWidth));
  first = 0;
  if (box.scrollHeight > box.clientHeight) box.tabIndex = 0;     // it scrolls, so the keyboard must reach it
  layMap();
}
function jump(event, picture) {
  const i = first + Math.floor((event.clientX - picture.getBoundingClientRect().left) / cellWidth);
  if (i < Math.min(N, first + columns)) step(i);
}

function drawLanes() {
  if (cur < first) first = Math.max(0, cur - Math.floor(columns * .7));
  if (cur >= first + columns - 1) first = cur - Math.floor(columns * .4);
  first = Math.max(0, Math.min(first, N - columns));
  const box = $("lanes"), to = Math.min(N, first + columns);
  const axis = [];
  for (let i = first; i < to; i++) {
    const x = (i - first) * cellWidth + cellWidth / 2, here = i === cur;
    if (here) axis.push(svg("rect", {x: x - 14, y: 1, width: 28, height: 17, rx: 4, class: "tab"}));
    if (here || (D.steps[i] % 5 === 0 && Math.abs(i - cur) > 1))
      axis.push(svg("text", {x, y: 13.5, class: here ? "here" : null}, D.steps[i]));
  }
  box.axis.replaceChildren(...axis);
  for (const lane of lanes) {
    const {row, bar, picture, state, text, mark, total} = lane.parts, now = lane.cells[cur];
    const past = svg("g"), later = svg("g", {class: "later"});
    for (let i = first; i < to; i++) {
      const cell = lane.cells[i], x = (i - first) * cellWidth;
      if (cell) (i > cur ? later : past).append(drawCell(cell, x, cellWidth, lane.color, tell(lane, i)));
    }
    picture.replaceChildren(past, later);
    const holds = now && "pcdi".includes(now.kind) ? lane.known[cur] : 0;
    bar.style.width = total ? `${Math.min(100, 100 * holds / total)}%` : "0";
    state.textContent = now ? `${STATE[now.kind]}, ${holds} tokens in the KV cache` : "not in the system";
    const over = lane.cells.slice(0, cur + 1).some(cell => cell && cell.done);
    row.classList.toggle("done", over);
    row.classList.toggle("out", !now || now.kind === "w" || now.kind === "x");
    if (text) {
      drawText(lane, text, now || over);
      mark.toggleAttribute("hidden", !text.scrollTop && !text.scrollLeft);
    }
  }
  const axisBox = box.axis.getBoundingClientRect(), frame = box.getBoundingClientRect();
  Object.assign($("now").style, {left: `${axisBox.left - frame.left + (cur - first) * cellWidth}px`,
                                 width: `${cellWidth}px`, height: `${box.scrollHeight}px`});
  const busy = lanes.find(lane => lane.cells[cur] && lane.cells[cur].n), top = busy ? busy.parts.row.offsetTop : 0;
  if (busy && (top < box.scrollTop + 20 || top > box.scrollTop + box.clientHeight - 60)) box.scrollTop = top - 24;
  $("needle").setAttribute("x1", cur + .5);
  $("needle").setAttribute("x2", cur + .5);
  $("lens").setAttribute("x", first);
  $("veil").setAttribute("x", cur + 1);
}

// The words a user has seen so far; the newest piece is lit. A preemption takes the KV away, not the words.
function drawText(lane, box, here) {
  const end = lane.cuts[cur] || 0, start = (cur && lane.cuts[cur - 1]) || 0;
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

// The whole run at a glance: one thin row a request, drawn once.
function layMap() {
  const map = $("map"), runs = [];
  for (const lane of lanes) {
    let from = 0;
    for (let i = 1; i <= N; i++) {
      const kind = lane.cells[from] && lane.cells[from].kind;
      if (i < N && (lane.cells[i] && lane.cells[i].kind) === kind) continue;
      if (kind && kind !== "a")
        runs.push(svg("rect", {x: from, y: lane.k + .12, width: i - from, height: .76,
                               class: `${kind === "c" ? "p" : kind} ${lane.color}`}));
      from = i;
    }
  }
  const veil = svg("rect", {id: "veil", y: 0, width: N, height: lanes.length});
  map.replaceChildren(...runs, veil, svg("rect", {id: "lens", y: 0, width: columns, height: lanes.length}),
                      svg("line", {id: "needle", y1: 0, y2: lanes.length}));
  map.setAttribute("viewBox", `0 0 ${N} ${lanes.length || 1}`);
  map.setAttribute("height", Math.max(14, Math.min(6 * lanes.length, 54)));
  map.toggleAttribute("hidden", columns >= N);
  map.onclick = event => {
    const box = map.getBoundingClientRect();
    step(Math.floor(N * (event.clientX - box.left) / box.width));
  };
}
