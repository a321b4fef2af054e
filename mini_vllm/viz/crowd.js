// What only large runs need: thin lanes, strips of queues and budgets, a pool by shares. Left out of the page else.
"use strict";
const SQUARES = 256;                             // at most, for the shares of a pool

// In thin rows a stretch of equal steps is one drawing.
function thinCells(run, lane) {
  const {first, columns, cellWidth, height} = run.view, out = [], single = cell => cell.resumed || cell.done || cell.n > 1;
  for (let i = first, to; i < first + columns; i = to) {
    const cell = lane.cells[i];
    to = i + 1;
    if (!cell) continue;
    if (!single(cell)) while (to < first + columns && lane.cells[to] === cell) to++;   // equal cells are one object
    const label = tell(run, lane, i) + (to > i + 1 ? `; so until step ${run.steps[to - 1]}` : "");
    out.push(drawCell(cell, (i - first) * cellWidth, (to - i) * cellWidth, height, lane.color, label, to - i));
  }
  return out;
}

// Largest value of each pixel column, so that no peak is lost where several steps share a column.
function drawStrip(pen, [name, values, limit], y, width, run, color) {
  const most = values.reduce((a, b) => Math.max(a, b), 0), full = limit || most || 1;
  pen.fillStyle = color("--bg");
  pen.fillRect(0, y, width, STRIP);
  pen.fillStyle = color("--mark");
  pen.globalAlpha = .45;
  const columns = new Float64Array(Math.ceil(width));
  values.forEach((value, i) => {
    const [from, to] = spanOf(run, i), last = Math.max(Math.floor(from * width) + 1, Math.floor(to * width));
    for (let x = Math.floor(from * width); x < last; x++) columns[x] = Math.max(columns[x], value);
  });
  columns.forEach((value, x) => pen.fillRect(x, y + STRIP * (1 - value / full), 1, STRIP * value / full));
  pen.globalAlpha = 1;
  pen.fillStyle = pen.strokeStyle = color("--ink");
  pen.font = "10.5px system-ui, sans-serif";
  pen.lineWidth = 3;
  pen.strokeStyle = color("--bg");
  const said = `${name}: at most ${most.toLocaleString("en")}${limit ? ` of ${limit.toLocaleString("en")}` : ""}`;
  pen.strokeText(said, 5, y + 13);
  pen.fillText(said, 5, y + 13);
}
function stripsOf(run) {
  const used = run.steps.map((_, i) => run.lanes.reduce((sum, lane) => sum + (lane.cells[i] ? lane.cells[i].n : 0), 0));
  const strips = [["waiting", run.waiting.map(queue => queue.length), 0],
                  ["running", run.running.map(queue => queue.length), run.seats], ["tokens in a step", used, run.budget]];
  if (run.blocks && run.free.some(Boolean))
    strips.push(["KV blocks", run.free.map(free => free === "" ? 0 : run.blocks - free), run.blocks]);
  return strips;
}

// Too many blocks for places: squares sorted by request. Each stands for as many blocks as the note says.
function laySquares(run, room) {
  const per = Math.ceil(run.blocks / SQUARES), w = 12, count = Math.ceil(run.blocks / per);
  const across = Math.max(1, Math.floor(room / w)), height = Math.ceil(count / across) * w + 1;
  const squares = Array.from({length: count}, (_, i) => ({title: svg("title"), node: svg("rect", {
    x: (i % across) * w + .5, y: Math.floor(i / across) * w + .5, width: w - 2, height: w - 2})}));
  for (const {node, title} of squares) node.append(title);
  const picture = svg("svg", {class: "blocks", viewBox: `0 0 ${room} ${height}`, role: "img"}, ...squares.map(s => s.node));
  return {per, room, squares, picture, facts: html("p", {class: "note"}),
          note: html("p", {class: "note"}, `one square = ${per} blocks, sorted by request, not by place`)};
}
function drawShares(run, shares, used) {
  const room = roomOf(run) - 22, owner = [];
  if (!run.shape || run.shape.room !== room) run.shape = laySquares(run, room);
  const {per, squares, picture, facts, note} = run.shape;
  let edge = 0;
  run.lanes.forEach((lane, k) => {
    edge += shares[k];
    while (owner.length < Math.round(edge / per)) owner.push(lane);
  });
  picture.setAttribute("aria-label", `Share of the KV blocks by request: ${used} of ${run.blocks} held`);
  squares.forEach((square, i) => {
    const lane = owner[i], key = lane ? `${lane.id}: ${shares[lane.k]} blocks` : "free";
    if (square.key === key) return;
    square.key = square.title.textContent = key;
    square.node.setAttribute("class", lane ? `b ${lane.color}` : "free");
  });
  const [shared = 0, cachedFree = 0, taken = 0, lost = 0] = run.counts[run.at];
  facts.textContent = [`taken in this step: ${taken}`, lost ? `lost by who was evicted: ${lost}` : "",
                       shared ? `shared: ${shared}` : "", cachedFree ? `free but still cached: ${cachedFree}` : ""]
    .filter(Boolean).join(" · ");
  return [picture, facts, note];
}
