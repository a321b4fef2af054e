// The player in its page: theme, height, links to a step; then the start. Knows frames and hosts, no scheduling.
"use strict";
// ---- theme: the page's own (Sphinx, JupyterLab, VS Code), else the system's ----
const dark = matchMedia("(prefers-color-scheme: dark)");
function host() {
  try { return parent !== window && parent.document ? parent : window; } catch { return window; }   // another origin
}
const HOST = host(), FRAME = HOST !== window ? frameElement : null;
function pageTheme() {
  const {documentElement: root, body} = HOST.document;
  if (FRAME && ["dark", "light"].includes(root.dataset.theme)) return root.dataset.theme;
  if (FRAME && body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
  if (FRAME && body.classList.contains("vscode-dark")) return "dark";
  return dark.matches ? "dark" : "light";
}
function paint() {
  const look = document.documentElement.dataset;
  if (look.look === pageTheme()) return;
  look.look = pageTheme();
  if (width) runs.forEach(run => layMap(run, run.map));          // a canvas does not follow the style sheet
}
dark.addEventListener("change", paint);
if (FRAME) {
  const watch = new MutationObserver(paint);
  for (const node of [HOST.document.documentElement, HOST.document.body])
    watch.observe(node, {attributes: true, attributeFilter: ["data-theme", "data-jp-theme-light", "class"]});
  const around = FRAME.closest(".text_html");                    // Sphinx puts a pale frame around HTML in dark mode
  if (around) { around.style.background = "transparent"; around.style.padding = "0"; }
}

// ---- height: take what the content needs; on stepping only grow, so that the page under the player keeps still ----
function fit(exact) {
  if (!D.fit || !FRAME) return;
  const need = $("app").offsetHeight + 1;
  if (exact || need > FRAME.clientHeight) FRAME.style.height = need + "px";
}
let width = 0;
function layout() {
  if ($("app").clientWidth === width) return;
  width = $("app").clientWidth;
  if (width < 100) return;                       // hidden, or not laid out yet
  for (const run of runs) {
    run.room = 0;
    layLanes(run);
    layMap(run, run.map);
  }
  $("maps").hidden = !PAIR && runs.every(run => run.view.columns >= run.n);
  go(cur);
  fit(true);
}

// ---- a link to a step: page address + #name@step=12, read by the player itself wherever it may see its page ----
// Players of one name are told apart by their order on the page: name, name-2, …
function ownName() {
  if (!FRAME) return D.link;
  const twins = [...HOST.document.querySelectorAll("iframe.step-player")].filter(frame => frame.dataset.link === D.link);
  const place = twins.indexOf(FRAME);
  return place > 0 ? `${D.link}-${place + 1}` : D.link;
}
const target = () => TIMED ? `@s=${seconds(clock[cur])}` : `@step=${clock[cur]}`;
function follow(hash, shouldScroll) {
  let text = hash;
  try { text = decodeURIComponent(hash); } catch { /* not ours */ }
  const [, name, at] = text.match(/^#(?:(.*)@)?(?:step|s)=(-?[\d.]+)$/) || [null, text.slice(1), null];
  if (name !== ownName() && (FRAME || name != null)) return;     // a page of its own takes "#step=12", too
  if (at != null) step(momentAt(Number(at)));
  if (!FRAME || !shouldScroll) return;
  FRAME.style.scrollMarginTop = "4.5rem";
  FRAME.scrollIntoView({block: "start", behavior: calm.matches ? "auto" : "smooth"});
}
function listen() {
  const onHash = () => follow(HOST.location.hash, true);
  const onClick = event => {                     // a second click on the same link changes no hash
    const link = event.target.closest && event.target.closest("a[href^='#']");
    if (link) follow(link.getAttribute("href"), true);
  };
  HOST.addEventListener("hashchange", onHash);
  HOST.document.addEventListener("click", onClick);
  addEventListener("pagehide", () => {
    HOST.removeEventListener("hashchange", onHash);
    HOST.document.removeEventListener("click", onClick);
  });
}
async function copyLink() {
  play(false);
  const hash = `#${ownName()}${target()}`, web = /^(https?|file):$/.test(HOST.location.protocol);
  const text = web ? HOST.location.href.split("#")[0] + hash : `${D.title}, ${TIMED ? "second" : "step"} ${clock[cur]}`;
  $("address").value = text;
  let done = "Copy this:";
  try {
    await HOST.navigator.clipboard.writeText(text);
    done = "Copied:";
  } catch { /* no permission, or no secure page: the text stands there to be copied by hand */ }
  $("linkbox").hidden = false;
  $("copied").textContent = done;
  if (done === "Copy this:") $("address").select();
}
$("unlink").addEventListener("click", () => { $("linkbox").hidden = true; $("link").focus(); });

// ---- the legend is drawn by the lanes' own code, so that the two cannot drift apart; only what occurs is explained ----
const everyLane = runs.flatMap(run => run.lanes);
const explain = (sample, words, look) => $("legend").append(html("span", {class: look}, sample, words));
const LEGEND = [["waiting", {kind: "w"}], ["prefill, with its tokens", {kind: "p", n: 6}], ["decode", {kind: "d", n: 1}],
                ["runs, no token", {kind: "i"}], ["evicted (preempted)", {kind: "x"}], ["swapped out", {kind: "x", out: true}],
                ["swapped out, waiting", {kind: "s"}], ["resumed", {kind: "c", n: 6, resumed: true}],
                ["swapped in", {kind: "d", n: 1, resumed: true, back: true}], ["recompute", {kind: "c", n: 6}],
                ["finished", {kind: "d", n: 1, done: true}], ["aborted", {kind: "a"}]];
function isLike(cell, c) {
  if (cell.done || cell.back) return cell.done ? c.done : c.back;
  return cell.resumed ? c.resumed && !c.back : c.kind === cell.kind && !c.done && !c.resumed && !c.out === !cell.out;
}
for (const [name, cell] of LEGEND) {
  if (!everyLane.some(lane => lane.cells.some(c => c && isLike(cell, c)))) continue;
  explain(svg("svg", {viewBox: "0 0 25 24", "aria-hidden": "true"}, drawCell(cell, 0, 25, 24, "c0")), name);
}
const enters = runs[0].lanes[(runs[0].running.find(queue => queue.length) || [])[0]];
const sized = everyLane.find(lane => lane.p != null && lane.m != null);
if (enters) explain(html("b", {}, `${enters.label} +`), "entered in this step");
if (sized) explain(html("b", {}, sizeOf(sized)), `prompt + at most ${sized.m} new tokens`, "size");
explain(null, "colour = request");
explain(null, "keys: ← → step · space plays · PgUp PgDn ten steps · Home End · n p next, previous event · + − speed" +
              (KINDS["first divergence"] ? " · d first divergence" : "") + " · l link", "keys");

// ---- where the two runs part ----
if (D.verdict) {
  const {head, values, more, moment} = D.verdict, box = $("verdict"), differ = moment != null;
  box.hidden = false;
  box.classList.toggle("differ", differ);
  const rows = values.map((value, k) => html("p", {class: "value"}, html("span", {class: "whose"}, D.labels[k]), value));
  box.append(html("span", {class: "sign", "aria-hidden": "true"}, differ ? "≠" : "="),
             html("div", {}, html("b", {}, head), ...rows, more ? html("p", {class: "note"}, more) : null));
  if (differ) {
    const leap = html("button", {type: "button", id: "leap", "aria-keyshortcuts": "d", title: "(d)"},
                      "jump to the first divergence");
    leap.addEventListener("click", () => step(moment));
    box.append(leap);
    const flag = html("div", {class: "flag", title: head});
    flag.style.left = `${100 * (moment + .5) / M}%`;
    $("maps").append(flag);
  }
}

$("title").textContent = D.title;
const alike = runs.every(run => run.about === runs[0].about);
$("about").textContent = alike ? runs[0].about : "";
Object.assign($("scrub"), {min: 0, max: TIMED ? clock[M - 1] : M - 1, step: TIMED ? "any" : 1});
document.body.classList.toggle("hide", D.future === "hide");
paint();
layout();
new ResizeObserver(() => { layout(); fit(false); }).observe($("app"));
listen();
follow(HOST.location.hash, true);
addEventListener("load", () => FRAME && HOST.document.readyState !== "complete" &&
                 HOST.addEventListener("load", () => follow(HOST.location.hash, true), {once: true}));
if (D.autoplay && !calm.matches) play(true);
