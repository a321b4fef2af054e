// Queues, the two budgets and the block map, all as they stand after schedule() of the current step.
"use strict";
const QUEUE_MAX = 24, LARGE = 96, SMALL = 256;   // blocks drawn with their id, with a label, bare

function drawPanels(run) {
  if (run.box.panels.open === false) return;     // a closed <details>
  drawQueues(run);
  drawCache(run);
}

// Nodes made anew only if their key has changed; a step changes few of them.
function kept(run, name, key, make) {
  const all = run.kept || (run.kept = {});
  if (!all[name] || all[name].key !== key) all[name] = {key, node: make()};
  return all[name].node;
}
function show(box, nodes) {
  if (box.childNodes.length !== nodes.length || nodes.some((node, k) => box.childNodes[k] !== node))
    box.replaceChildren(...nodes);
}
const roomOf = run => run.room || (run.room = run.box.kv.clientWidth);   // forgotten when the width changes
function drawQueues(run) {
  const {at, lanes} = run, inside = run.running[at], outside = run.waiting[at];
  const done = lane => lane.cells[at] && lane.cells[at].done && !inside.includes(lane.k);
  const leaving = lanes.filter(done).map(lane => lane.k), plan = lanes.filter(lane => lane.cells[at] && lane.cells[at].n);
  const used = plan.reduce((sum, lane) => sum + lane.cells[at].n, 0), limit = run.budget || Math.max(used, 1);
  const segments = plan.map(({id, color, cells}) => [cells[at].n, `${cells[at].kind} ${color}`, `${id}: ${cells[at].n} tokens`]);
  const asked = document.activeElement && document.activeElement.dataset.rid;
  show(run.box.queues, [
    heading(run, "waiting, head first", outside.length), chips(run, outside, true),
    heading(run, "running", run.seats ? `${inside.length} / ${run.seats}` : inside.length),
    chips(run, [...inside, ...leaving], false),
    heading(run, "token budget", `${used.toLocaleString("en")}${run.budget ? ` / ${run.budget.toLocaleString("en")}` : ""}`,
            used === run.budget ? "full" : null),
    bar(run, "token budget", used, limit, segments)]);
  const again = asked && [...run.box.queues.querySelectorAll("button")].find(chip => chip.dataset.rid === asked);
  if (again) again.focus();                      // the chip that had the focus may have been drawn anew
}
const heading = (run, name, value, look) => kept(run, `of ${name}`, `${value} ${look}`, () =>
  html(PAIR ? "h3" : "h2", {class: "gauge"}, name, html("b", {class: look}, value)));

// [sign, word] for what this step did to the request, so that a chip does not rest on colour or place alone.
function news(run, k, asks) {
  const cell = run.lanes[k].cells[run.at] || {};
  if (cell.kind === "x") return cell.out ? ["↓", "swapped out"] : ["×", "evicted"];
  if (cell.done) return ["✓", "finished"];
  if (cell.resumed) return cell.back ? ["↑", "swapped in"] : ["↻", "resumed"];
  if (cell.kind === "i") return ["–", "not scheduled"];
  if (cell.kind === "s") return ["↓", "swapped out"];
  return asks || (run.at && run.running[run.at - 1].includes(k)) ? ["", ""] : ["+", "new"];
}
function chips(run, order, asks) {
  const shown = order.slice(0, QUEUE_MAX), told = shown.map(k => news(run, k, asks));
  return kept(run, `chips ${asks}`, [...order, ...told, run.asked].join(), () => buildChips(run, order, asks, told));
}
function buildChips(run, order, asks, told) {
  const box = html("div", {class: "chips", role: "list"});
  for (const [place, [mark, word]] of told.entries()) {
    const k = order[place], lane = run.lanes[k], alarm = mark === "×" || mark === "↓";
    const note = !mark ? null : html("em", {class: alarm ? "x" : null, title: word},
                                     html("span", {"aria-hidden": "true"}, mark), html("span", {class: "sr"}, word));
    const button = {type: "button", "data-rid": run.k + "/" + k, "aria-pressed": run.asked === k};
    const chip = html(asks ? "button" : "span",
                      {class: `chip ${lane.color}`, title: asks ? `Why does ${lane.id} wait?` : lane.id,
                       ...(asks ? button : {})}, lane.label, note);
    if (asks) chip.addEventListener("click", () => ask(run, k));
    box.append(html("span", {role: "listitem"}, chip));
  }
  if (order.length > QUEUE_MAX) box.append(html("span", {class: "none", role: "listitem"}, `and ${order.length - QUEUE_MAX} more`));
  if (!order.length) box.append(html("span", {class: "none", role: "listitem"}, "nobody"));
  return box;
}
// The sentence for the request that the reader asked about, else for the head. Only the head is tested against the
// limits, unless it is one that is passed over.
function answer(run) {
  const order = run.waiting[run.at], place = order.indexOf(run.asked), why = run.whys[run.at];
  if (place < 0 && run.asked != null) run.asked = null;
  if (place <= 0 && (why || run.asked == null)) return why;
  const head = run.lanes[order[0]].label, mine = run.lanes[run.asked].label;
  if (place === 0) return `${head} is the head of the queue; the trace does not say why it stays out.`;
  if (run.skips[run.at])
    return `${mine} stands behind ${head}, which is passed over, so those behind it are looked at as well; the trace ` +
           `tells the reason of the head only. ${why}`;
  const ahead = place === 1 ? head : `${place} others, ${head} first`;
  return `${mine} waits behind ${ahead}: whoever is behind the head is not even looked at. ${why}`;
}
function ask(run, k) {
  if (!run.waiting[run.at].includes(k)) return;
  play(false);
  run.asked = run.asked === k ? null : k;
  drawStory();
  drawQueues(run);
}
const bar = (run, name, ...facts) => kept(run, name, JSON.stringify(facts), () => buildBar(name, ...facts));
function buildBar(name, used, limit, segments) {
  const box = html("div", {class: segments.length > 40 ? "bar many" : "bar", role: "meter", "aria-label": name,
                           "aria-valuemin": 0, "aria-valuemax": limit, "aria-valuenow": used,
                           "aria-valuetext": `${used} of ${limit}`});
  for (const [size, look, title] of segments)
    box.append(html("span", {class: look, title, style: `width:${100 * size / limit}%`}));
  return box;
}

function drawCache(run) {
  const {box: {kv: box}, at, lanes} = run, total = run.blocks;
  if (!total && !run.has_blocks) return;
  const owners = new Map();                      // block id → [[lane, place in its table], …]
  for (const lane of lanes)
    lane.blocks[at].forEach((id, place) => { if (id) owners.set(id, [...(owners.get(id) || []), [lane, place]]); });
  const firsts = new Map();
  for (const [[lane]] of owners.values()) firsts.set(lane, (firsts.get(lane) || 0) + 1);
  const shares = lanes.map(lane => run.pool ? lane.counts[at] : firsts.get(lane) || 0);
  const held = shares.reduce((sum, share) => sum + share, 0);
  const used = run.free[at] !== "" && total ? total - Number(run.free[at]) : held, full = total && used === total;
  const segments = lanes.map((lane, k) => [shares[k], lane.color, `${lane.id}: ${shares[k]} blocks`]);
  if (!held && used) segments.push([used, "any", `${used} blocks in use`]);
  const said = total ? `${used.toLocaleString("en")} / ${total.toLocaleString("en")}${full ? ", 0 free" : ""}` : used;
  const top = [heading(run, "KV blocks used", said, full ? "full" : null),
               bar(run, "KV blocks", used, total || Math.max(used, 1), segments.filter(segment => segment[0]))];
  if (!run.has_blocks || !total) show(box, top);
  else if (run.pool) show(box, [...top, ...drawShares(run, shares, used)]);
  else {
    if (!run.tiles || run.tiles.width !== roomOf(run)) layTiles(run);
    const {picture, note} = run.tiles;
    show(box, [...top, picture, note]);
    drawTiles(run, owners);
  }
}
