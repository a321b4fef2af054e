// Queues, the two budgets and the block map, all as they stand after schedule() of the current step.
"use strict";
const QUEUE_MAX = 24, LARGE = 96, SMALL = 256;              // blocks drawn with their id, with a label, bare

function drawPanels() {
  drawQueues();
  drawCache();
}

function drawQueues() {
  const inside = numbers(running[cur]), outside = numbers(waiting[cur]);
  const done = lane => lane.cells[cur] && lane.cells[cur].done && !inside.includes(lane.k);
  const leaving = lanes.filter(done).map(lane => lane.k);
  const plan = lanes.filter(lane => lane.cells[cur] && lane.cells[cur].n);
  const used = plan.reduce((sum, lane) => sum + lane.cells[cur].n, 0), limit = D.budget || Math.max(used, 1);
  const segments = plan.map(lane => [lane.cells[cur].n, `${lane.cells[cur].kind} ${lane.color}`, tell(lane, cur)]);
  $("queues").replaceChildren(
    heading("waiting, head first", outside.length), chips(outside, true),
    heading("running", D.seats ? `${inside.length} / ${D.seats}` : inside.length), chips([...inside, ...leaving], false),
    heading("token budget", D.budget ? `${used} / ${D.budget}` : used), bar("token budget", used, limit, segments));
}
const heading = (name, value, look) => html("h2", {}, name, html("b", {class: look}, value));

// [sign, word] for what this step did to the request, so that a chip does not rest on colour or place alone.
function news(k, ask) {
  const cell = lanes[k].cells[cur] || {};
  if (cell.kind === "x") return ["×", "preempted"];
  if (cell.done) return ["✓", "finished"];
  if (cell.resumed) return ["↻", "resumed"];
  if (cell.kind === "i") return ["–", "not scheduled"];
  return ask || (cur && numbers(running[cur - 1]).includes(k)) ? ["", ""] : ["+", "new"];
}
function chips(order, ask) {
  const box = html("div", {class: "chips", role: "list"});
  for (const k of order.slice(0, QUEUE_MAX)) {
    const lane = lanes[k], [mark, word] = news(k, ask);
    const note = !mark ? null : html("em", {class: mark === "×" ? "x" : null, title: word},
                                     html("span", {"aria-hidden": "true"}, mark), html("span", {class: "sr"}, word));
    const chip = html(ask ? "button" : "span", {class: `chip ${lane.color}`, type: ask ? "button" : null,
                                                title: ask ? `Why does ${lane.id} wait?` : lane.id}, lane.label, note);
    if (ask) chip.addEventListener("click", () => { play(false); why(order, k, chip); });
    box.append(html("span", {role: "listitem"}, chip));
  }
  if (order.length > QUEUE_MAX) box.append(html("span", {class: "none"}, `and ${order.length - QUEUE_MAX} more`));
  if (!order.length) box.append(html("span", {class: "none"}, "nobody"));
  return box;
}
// Only the head is tested against the limits; everybody else waits for the head.
function why(order, k, chip) {
  const at = order.indexOf(k), head = lanes[order[0]].label;
  const ahead = at === 1 ? head : `${at} others, ${head} first`;
  $("why").textContent = at === 0 ?
    whys[cur] || `${head} is the head of the queue; the trace does not say why it stays out.` :
    `${lanes[k].label} waits behind ${ahead}: whoever is behind the head is not even looked at. ${whys[cur]}`;
  for (const other of document.querySelectorAll(".asked")) other.classList.remove("asked");
  chip.classList.add("asked");
  grow();
}
function bar(name, used, limit, segments) {
  const box = html("div", {class: "bar", role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": limit,
                           "aria-valuenow": used, "aria-valuetext": `${used} of ${limit}`});
  for (const [size, look, title] of segments)
    box.append(html("span", {class: look, title, style: `width:${100 * size / limit}%`}));
  return box;
}

function drawCache() {
  const box = $("kv"), total = D.blocks;
  if (!total && !D.has_blocks) return;
  const owners = new Map();                                      // block id → [[lane, place in its table], …]
  for (const lane of lanes)
    lane.blocks[cur].forEach((id, at) => { if (id) owners.set(id, [...(owners.get(id) || []), [lane, at]]); });
  const firsts = [...owners.values()].map(held => held[0][0]);
  const shares = lanes.map(lane => D.waffle ? Number(lane.counts[cur]) : firsts.filter(first => first === lane).length);
  const held = shares.reduce((sum, share) => sum + share, 0);
  const used = free[cur] !== "" && total ? total - Number(free[cur]) : held, full = total && used === total;
  const segments = lanes.map((lane, k) => [shares[k], lane.color, `${lane.id}: ${shares[k]} blocks`]);
  if (!held && used) segments.push([used, "any", `${used} blocks in use`]);
  box.replaceChildren(
    heading("KV blocks used", total ? `${used} / ${total}${full ? ", 0 free" : ""}` : used, full ? "full" : null),
    bar("KV blocks", used, total || Math.max(used, 1), segments.filter(segment => segment[0])),
    ...(!D.has_blocks || !total ? [] : D.waffle ? drawWaffle(shares, total) : drawMap(owners, total)));
}

// Both panels share the width, or stand one above the other (player.css, #panels).
function panelWidth() {
  const all = $("panels").clientWidth;
  return (all >= 610 ? (all - 10) / 2 : all) - 22;
}
function drawMap(owners, total) {
  const room = panelWidth(), [w, h] = total <= LARGE ? [36, 34] : total <= SMALL ? [27, 21] : [11, 11];
  const across = Math.max(1, Math.floor(room / w)), rows = Math.ceil(total / across);
  const before = lanes.map(lane => new Set(cur ? lane.blocks[cur - 1] : [])), cached = new Set(hashed[cur]);
  const picture = svg("svg", {id: "blocks", viewBox: `0 0 ${room} ${rows * h + 2}`, role: "img",
                              "aria-label": spoken(owners, total)});
  for (let id = 1; id <= total; id++) {
    const x = ((id - 1) % across) * w + 1, y = Math.floor((id - 1) / across) * h + 1, held = owners.get(id);
    const fresh = held && held.some(([lane]) => !before[lane.k].has(id));
    picture.append(held ? drawHeld(id, held, fresh, x, y, w, h) : drawFree(id, cached.has(id), x, y, w, h));
    if (w > 30) picture.append(svg("text", {x: x + 2.5, y: y + 8.5, class: "id"}, id));
    if (cached.has(id)) picture.append(svg("path", {d: `M${x + w - 9} ${y}h6v6z`, class: "tag"}));
  }
  const notes = [D.block_size && w > 20 ? "bar in a block: how full it is" : "", "strong frame: taken in this step",
                 D.hashed ? "corner: carries a hash" : ""];
  return [picture, html("p", {class: "note"}, notes.filter(Boolean).join(" · "))];
}
function drawFree(id, findable, x, y, w, h) {
  return svg("g", {}, svg("title", {}, `block ${id}: free${findable ? ", still findable by its hash" : ""}`),
             svg("rect", {x, y, width: w - 3, height: h - 3, rx: 2, class: "free"}),
             svg("circle", {cx: x + (w - 3) / 2, cy: y + (h - 3) / 2, r: w > 20 ? 1.6 : 1, class: "speck"}));
}
function drawHeld(id, held, fresh, x, y, w, h) {
  const [lane, at] = held[0], size = D.block_size;
  const label = held.length > 1 ? `${lane.label}+${held.length - 1}` : lane.label;
  const filled = size ? Math.max(0, Math.min(size, lane.known[cur] - at * size)) : 0;
  const places = held.map(([who, n]) => `${who.id}, its block ${n + 1}`).join("; ");
  const g = svg("g", {class: lane.color},
                svg("title", {}, `block ${id}: ${places}${size ? `; ${filled} of ${size} slots filled` : ""}`),
                svg("rect", {x, y, width: w - 3, height: h - 3, rx: 2, class: fresh ? "b fresh" : "b"}));
  if (w < 20) return g;
  if (size) g.append(svg("rect", {x: x + 2, y: y + h - 8, width: (w - 7) * filled / size, height: 3, class: "level"}));
  const small = label.length > 5 ? "font-size:8px" : label.length > 3 ? "font-size:9.5px" : null, wide = w > 30;
  g.append(svg("text", {x: x + (w - 3) / 2, y: y + h / 2 + (wide ? 4 : 1), style: small}, label));
  return g;
}
// Too many blocks to draw: 200 squares, by share and not by place.
function drawWaffle(shares, total) {
  const squares = 200, room = panelWidth(), w = 12, across = Math.max(1, Math.floor(room / w)), owner = [];
  const picture = svg("svg", {id: "blocks", viewBox: `0 0 ${room} ${Math.ceil(squares / across) * w + 1}`, role: "img",
                              "aria-label": "Share of the KV blocks by request"});
  let edge = 0;
  lanes.forEach((lane, k) => {
    edge += shares[k];
    while (owner.length < Math.round(squares * edge / total)) owner.push(lane);
  });
  for (let i = 0; i < squares; i++)
    picture.append(svg("rect", {x: (i % across) * w + .5, y: Math.floor(i / across) * w + .5, width: w - 2, height: w - 2,
                                class: owner[i] ? `b ${owner[i].color}` : "free"},
                       owner[i] ? svg("title", {}, owner[i].id) : null));
  const per = (total / squares).toFixed(total % squares ? 1 : 0);
  return [picture, html("p", {class: "note"}, `one square = ${per} blocks, sorted by request, not by place`)];
}
function spoken(owners, total) {
  const parts = lanes.map(lane => [lane, lane.blocks[cur].filter(Boolean)]).filter(([, held]) => held.length)
    .map(([lane, held]) => `${lane.id} holds ${held.length > 12 ? `${held.length} blocks` : held.join(", ")}`);
  return `Block map: ${[...parts, `${total - owners.size} not held`].join("; ")}`;
}

// The legend is drawn by the lanes' own code, so that the two cannot drift apart. Only what occurs is explained.
const explain = (sample, words, look) => $("legend").append(html("span", {class: look}, sample, words));
const LEGEND = [["waiting", {kind: "w"}], ["prefill, with its tokens", {kind: "p", n: 6}], ["decode", {kind: "d", n: 1}],
                ["runs, no token", {kind: "i"}], ["preempted", {kind: "x"}], ["resumed", {kind: "c", n: 6, resumed: true}],
                ["recompute", {kind: "c", n: 6}], ["finished", {kind: "d", n: 1, done: true}], ["aborted", {kind: "a"}]];
for (const [name, cell] of LEGEND) {
  const same = c => cell.done ? c.done : cell.resumed ? c.resumed : c.kind === cell.kind && !c.done && !c.resumed;
  if (!lanes.some(lane => lane.cells.some(c => c && same(c)))) continue;
  const drawn = drawCell(cell, 0, CELL_H + 1, "c0");
  explain(svg("svg", {viewBox: `0 0 ${CELL_H + 1} ${CELL_H}`, "aria-hidden": "true"}, drawn), name);
}
const entered = numbers(running.find(queue => queue))[0], sized = lanes.find(lane => lane.p != null && lane.m != null);
if (entered != null) explain(html("b", {}, `${lanes[entered].label} +`), "entered in this step");
if (sized) explain(html("b", {}, sizeOf(sized)), `prompt + at most ${sized.m} new tokens`, "size");
explain(null, "colour = request");
explain(null, "keys: ← → step · space plays · Home, End · n = next event");

paint();
layout();
new ResizeObserver(layout).observe($("app"));
if (D.autoplay && !calm.matches) play(true);
