// Wide tables and formulas scroll inside their own box; a keyboard must be able to reach such a box.
function markScrollable() {
  for (const box of document.querySelectorAll(".bd-article table, .bd-article mjx-container[display='true']")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}
window.addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  markScrollable();
});
window.addEventListener("resize", markScrollable);
