// The whole run at a glance, above the slider: a thin row a request, and in large runs a strip a queue and budget.
"use strict";
const CROWD = 40, STRIP = 24;                    // lanes up to which a run is drawn lane by lane; px of a strip
// [kinds, colour (null: the request's own), opacity, px that it is never narrower than], the rare drawn over the common
const LAYERS = [["w", "--soft", .2, 0], ["s", "--soft", .45, 0], ["i", null, .3, 0], ["d", null, 1, 0], ["pc", null, .5, 0],
                ["x", "--alarm", 1, 2]];

// Where step i of a run begins, as a share of the width. The last step ends at 1.
function spanOf(run, i) {
  if (!TIMED) {
    const from = run.starts || (run.starts = run.steps.map(step => clock.indexOf(step)));
    return [from[i] / M, (i + 1 < run.n ? from[i + 1] : i + 1 < M ? from[i] + 1 : M) / M];
  }
  const total = clock[M - 1] || 1;
  return run.times[i].map(t => t / total);
}
function stretches(lane, n) {                    // [kind, first step, last step] wherever the kind stays the same
  const out = [];
  for (let from = 0, i = 1; i <= n; i++) {
    const kind = lane.cells[from] && lane.cells[from].kind;
    if (i < n && (lane.cells[i] && lane.cells[i].kind) === kind) continue;
    if (kind) out.push([kind, from, i - 1]);
    from = i;
  }
  return out;
}
function layMap(run, box) {
  const crowd = run.lanes.length > CROWD, rows = run.lanes.length || 1;
  const height = crowd ? Math.min(rows * 1.5, 200) : Math.max(14, Math.min(6 * rows, 54));
  const strips = crowd ? stripsOf(run) : [];
  const width = box.clientWidth, ratio = Math.min(2, devicePixelRatio || 1), picture = box.querySelector("canvas");
  const whole = Math.round(height + strips.length * (STRIP + 3));
  picture.width = width * ratio;
  picture.height = whole * ratio;
  picture.style.height = whole + "px";
  const pen = picture.getContext("2d"), look = getComputedStyle(document.documentElement);
  const color = name => look.getPropertyValue(name);
  const own = Array.from({length: 7}, (_, k) => color(`--c${k}`));
  pen.scale(ratio, ratio);
  const row = height / rows, parts = run.lanes.map(lane => stretches(lane, run.n));
  for (const [kinds, name, opacity, least] of LAYERS) {
    pen.globalAlpha = opacity;
    if (name) pen.fillStyle = color(name);
    run.lanes.forEach((lane, k) => {
      if (!name) pen.fillStyle = own[k % 7];
      for (const [kind, from, to] of parts[k]) {
        if (!kinds.includes(kind)) continue;
        const x = spanOf(run, from)[0] * width, w = Math.max(least, spanOf(run, to)[1] * width - x);
        pen.fillRect(x, (k + .1) * row, w, Math.max(row * .8, .8));
      }
    });
  }
  pen.globalAlpha = 1;
  strips.forEach((strip, k) => drawStrip(pen, strip, height + k * (STRIP + 3) + 3, width, run, color));
}
// Over each map lie a veil on what is to come, the needle, and a lens where the lanes show only a part of the run.
function buildMap(run) {
  const box = html("div", {class: "map", "aria-hidden": "true"}, html("canvas"), html("div", {class: "veil"}),
                   html("div", {class: "lens"}), html("div", {class: "needle"}));
  box.addEventListener("click", event => {
    const frame = box.getBoundingClientRect(), share = (event.clientX - frame.left) / frame.width;
    step(TIMED ? momentAt(share * clock[M - 1]) : Math.floor(share * M));
  });
  return box;
}
function drawMap(run) {
  const [, , lens, needle] = run.map.children, veil = run.map.children[1];
  const here = TIMED ? clock[cur] / (clock[M - 1] || 1) : (cur + .5) / M;
  veil.style.left = 100 * (TIMED ? here : (cur + 1) / M) + "%";
  needle.style.left = 100 * here + "%";
  const {first, columns} = run.view, last = Math.min(run.n, first + columns) - 1;
  lens.style.left = 100 * spanOf(run, first)[0] + "%";
  lens.style.right = 100 - 100 * spanOf(run, last)[1] + "%";
  lens.hidden = columns >= run.n;
}
