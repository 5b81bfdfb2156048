// Everything is drawn when the page is there, and again when its width changes.

const data = JSON.parse(document.getElementById("data").textContent);
const redraw = [];

for (const place of document.querySelectorAll("[data-chart]")) {
  const spec = data.charts[place.dataset.chart];
  redraw.push(() => {
    if (!place.clientWidth) return;
    place.replaceChildren();
    KINDS[spec.kind](place, spec);
  });
}
redraw.forEach((draw) => draw());
if (data.front) redraw.push(Front(data.front, data.widths, data.squares));

let width = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  redraw.forEach((draw) => draw());
});

// Paper shows everything.
const closed = [];
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) { closed.push(details); details.open = true; }
});
window.addEventListener("afterprint", () => { while (closed.length) closed.pop().open = false; });
