// The KV block map: a tile a block, drawn anew only where something changed.
"use strict";
function layTiles(run) {
  const width = roomOf(run), room = width - 22, total = run.blocks;
  const [w, h] = total <= LARGE ? [36, 34] : total <= SMALL ? [27, 21] : [11, 11];
  const across = Math.max(1, Math.floor(room / w)), rows = Math.ceil(total / across);
  const picture = svg("svg", {class: "blocks", viewBox: `0 0 ${room} ${rows * h + 2}`, role: "img"}), tiles = [];
  for (let id = 1; id <= total; id++) {
    const x = ((id - 1) % across) * w + 1, y = Math.floor((id - 1) / across) * h + 1;
    const tile = svg("g", {transform: `translate(${x} ${y})`});
    tiles.push({tile, id, w, h, key: null});
    picture.append(tile);
  }
  const notes = [run.block_size && w > 20 ? "bar in a block: how full it is" : "", "strong frame: taken in this step",
                 run.shares && w > 20 ? "R1 +1: shared with one more" : "",
                 run.hashed.some(ids => ids.length) ? "corner: cached, a prefix can hit it" : "",
                 run.events.eviction ? "×: lost by who was evicted" : "",
                 run.events["cache loss"] ? "open corner: no longer cached" : ""];
  run.tiles = {width, picture, tiles, note: html("p", {class: "note"}, notes.filter(Boolean).join(" · "))};
}
function drawTiles(run, owners) {
  const {lanes, at} = run, before = lanes.map(lane => new Set(at ? lane.blocks[at - 1] : []));
  const cached = new Set(run.hashed[at]), was = new Set(at ? run.hashed[at - 1] : []);
  const victims = lanes.filter(lane => at && lane.cells[at] && lane.cells[at].kind === "x");
  run.tiles.picture.setAttribute("aria-label", spoken(run, owners));
  for (const part of run.tiles.tiles) {
    const {id} = part, held = owners.get(id) || [], victim = victims.find(lane => before[lane.k].has(id));
    const look = {id, held, fresh: held.some(([lane]) => !before[lane.k].has(id)), cached: cached.has(id), victim,
                  lost: was.has(id) && !cached.has(id), filled: 0};
    if (held.length && run.block_size) {
      const [lane, place] = held[0];
      look.filled = Math.max(0, Math.min(run.block_size, lane.known[at] - place * run.block_size));
    }
    const key = [held.map(([lane, place]) => `${lane.k}.${place}`), look.fresh, look.cached, look.lost, look.filled,
                 victim && victim.k].join();
    if (key === part.key) continue;
    part.key = key;
    part.tile.replaceChildren(...drawTile(run, part, look));
    part.tile.setAttribute("class", held.length ? held[0][0].color : "");
  }
}
function drawTile(run, {w, h}, {id, held, fresh, cached, lost, filled, victim}) {
  const size = run.block_size, wide = w > 30, out = [];
  const owner = held.length ? held.map(([lane, place]) => `${lane.id}, its block ${place + 1}`).join("; ") :
    "free" + (cached ? ", still cached: a prefix can hit it" : "");
  const facts = [owner, held.length && size ? `${filled} of ${size} slots filled` : "",
                 victim ? `until now ${victim.id}'s, which was evicted` : "", lost ? "what it had cached is gone" : ""];
  out.push(svg("title", {}, `block ${id}: ${facts.filter(Boolean).join("; ")}`),
           svg("rect", {width: w - 3, height: h - 3, rx: 2, class: !held.length ? (cached ? "kept" : "free") : fresh ? "b fresh" : "b"}));
  if (held.length && w >= 20) {
    if (size) out.push(svg("rect", {x: 2, y: h - 8, width: (w - 7) * filled / size, height: 3, class: "level"}));
    const label = held[0][0].label + (held.length > 1 ? `+${held.length - 1}` : "");
    const small = label.length > 5 ? "font-size:8px" : label.length > 3 ? "font-size:9.5px" : null;
    out.push(svg("text", {x: (w - 3) / 2, y: h / 2 + (wide ? 4 : 1), style: small}, label));
  } else if (!held.length) out.push(svg("circle", {cx: (w - 3) / 2, cy: (h - 3) / 2, r: w > 20 ? 1.6 : 1, class: "speck"}));
  if (wide) out.push(svg("text", {x: 2.5, y: 8.5, class: "id"}, id));
  if (cached || lost) out.push(svg("path", {d: `M${w - 9.5} .5h6v6z`, class: lost ? "tag lost" : "tag"}));
  if (victim) {
    const r = wide ? 2.6 : 2, x = wide ? w - (cached || lost ? 15 : 9) : (w - 3) / 2, y = wide ? 6 : (h - 3) / 2;
    out.push(svg("path", {d: `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`, class: "gone"}));
  }
  return out;
}
function spoken(run, owners) {
  const parts = run.lanes.map(lane => [lane, lane.blocks[run.at].filter(Boolean)]).filter(([, held]) => held.length)
    .map(([lane, held]) => `${lane.id} holds ${held.length > 12 ? `${held.length} blocks` : held.join(", ")}`);
  return `Block map: ${[...parts, `${run.blocks - owners.size} not held`].join("; ")}`;
}
