// The front among everything that was evaluated, and the network that is chosen in it.

const NAMES = { macs: "MACs", params: "parameters", latency: "predicted latency", throughput: "predicted throughput", memory: "peak memory" };
const UP_TO = { macs: "number of MACs", params: "number of parameters", latency: "latency", memory: "memory" };
const quantity = (cost) => ({ latency: "seconds", throughput: "rate", memory: "bytes" })[cost] || (UNITS[cost] ? cost : "amount");

function Front(data, widths, squares) {
  for (const [name, unit] of Object.entries(data.units || {})) {
    NAMES[name] = `predicted ${name}`, UP_TO[name] = name, UNITS[name] = [[1, unit]];
  }
  const P = data, n = P.key.length, place = document.getElementById("front-chart"), panel = document.getElementById("chosen");
  const costs = Object.keys(NAMES).filter((name) => P[name]);
  const onFront = new Set(P.front);
  let cost = costs.includes(P.axis) ? P.axis : costs[0], near = false, chosen = null, focus = P.best ?? P.front[0] ?? top(), view = null;

  /** The most accurate network. */
  function top() {
    return P.accuracy.reduce((best, value, k) => (value > P.accuracy[best] ? k : best), 0);
  }

  // --- the chart ---

  function limits() {
    const values = P[cost].filter(known), low = Math.min(...values), high = Math.max(...values), room = (high - low) / 2;
    return (P.limits[cost] || []).filter((v) => known(v) && v > low - room && v < high + room);
  }

  function ranges() {
    const some = near ? P.front : [...P.key.keys()];
    const hand = byHand() && !near ? [P.baseline] : [];
    const x = ends(some.map((k) => P[cost][k]).concat(near ? [] : limits(), hand.map((row) => row[cost])), {}, near ? 0.3 : 0.04);
    const y = ends(some.map((k) => P.accuracy[k]).concat(hand.map((row) => row.accuracy)), { quantity: "percent" }, near ? 0.3 : 0.04);
    return [x, [y[0], y[1] === 100 ? 100 + 0.03 * (100 - y[0]) : y[1]]];
  }

  /** Whether there is a network that one would draw by hand, and its cost is known. */
  const byHand = () => P.baseline && known(P.baseline[cost]);
  const diamond = (x, y) => `M${x.toFixed(1)} ${(y - 7).toFixed(1)}l7 7l-7 7l-7 -7z`;

  /** The most accurate within the limits up to each cost; from each throughput on. */
  function stairs(X, Y, left, right) {
    const order = [...P.key.keys()].filter((k) => P.inside[k] && known(P[cost][k])).sort((a, b) => P[cost][a] - P[cost][b] || P.accuracy[b] - P.accuracy[a]);
    let best = -Infinity, out = "";
    for (const k of cost === "throughput" ? order.reverse() : order) {
      if (P.accuracy[k] <= best) continue;
      out += out ? `H${X(P[cost][k]).toFixed(1)}V${Y(P.accuracy[k]).toFixed(1)}` : `M${X(P[cost][k]).toFixed(1)} ${Y(P.accuracy[k]).toFixed(1)}`;
      best = P.accuracy[k];
    }
    return out && out + `H${cost === "throughput" ? left : right}`;
  }

  function describe(k) {
    const lines = [`accuracy ${say("percent", P.accuracy[k])}`, ...costs.map((c) => `${NAMES[c]} ${say(quantity(c), P[c][k])}`)];
    if (known(P.measured[k])) lines.push(`measured latency ${say("seconds", P.measured[k])}`);
    return lines;
  }

  const role = (k) => (k === P.best ? "the best" : onFront.has(k) ? "on the front" : P.inside[k] ? "" : "outside the limits");

  function draw() {
    const width = place.clientWidth, height = Math.round(Math.min(Math.max(width * 0.62, 300), 480));
    if (!width) return;
    const [xEnds, yEnds] = ranges();
    const f = frame(width, height, { title: NAMES[cost], quantity: quantity(cost), ends: xEnds }, { title: "accuracy, search split", quantity: "percent", ends: yEnds });
    const { own, X, Y, left, right, top, bottom } = f;
    put(own, { role: "group", "aria-label": `Accuracy against ${NAMES[cost]} of ${n} networks, ${P.front.length} of them on the front` }, []);
    own.append(svg("clipPath", { id: "front-clip" }, svg("rect", { x: left - 8, y: top - 8, width: right - left + 16, height: bottom - top + 16 })));
    const dots = svg("g", { "clip-path": "url(#front-clip)" });
    own.append(dots);
    for (const v of limits()) {
      if (v < xEnds[0] || v > xEnds[1]) continue;
      own.append(svg("path", { d: `M${X(v).toFixed(1)} ${top}V${bottom}`, class: "limit" }));
      own.append(svg("text", { x: X(v) - 5, y: bottom - 6, class: "tick", "text-anchor": "end", "font-size": 12 }, `limit ${say(quantity(cost), v)}`));
    }
    dots.append(svg("path", { d: stairs(X, Y, left, right), class: "line c1 stairs" }));
    const places = [...P.key.keys()].filter((k) => known(P[cost][k]) && known(P.accuracy[k]));
    const rank = (k) => (k === P.best ? 3 : onFront.has(k) ? 2 : P.inside[k] ? 1 : 0);
    const nodes = new Map();
    for (const k of places.sort((a, b) => rank(a) - rank(b))) {
      const kind = ["outside", "inside", "front", "front best"][rank(k)];
      const dot = svg("circle", { cx: X(P[cost][k]), cy: Y(P.accuracy[k]), r: rank(k) > 1 ? 5.5 : 3.2, class: `point ${kind}`, "data-point": k });
      if (rank(k) > 1) put(dot, { role: "button", tabindex: -1, "aria-label": `${P.key[k]}, ${role(k)}: ${describe(k).join(", ")}` }, []);
      nodes.set(k, dot);
      dots.append(dot);
    }
    if (byHand()) {
      const row = P.baseline, said = [`accuracy ${say("percent", row.accuracy)}`, ...costs.filter((c) => known(row[c])).map((c) => `${NAMES[c]} ${say(quantity(c), row[c])}`)];
      const text = `${row.key}, by hand: ${said.join(", ")}`;
      dots.append(svg("path", { d: diamond(X(row[cost]), Y(row.accuracy)), class: "hand", role: "img", "aria-label": text }, svg("title", {}, text)));
    }
    const ring = svg("circle", { r: 10, class: "ring" });
    dots.append(ring);
    place.replaceChildren(key(), own);
    view = { ...f, tip: tooltip(place), nodes, ring, places };
    if (!nodes.has(focus)) focus = P.front.find((k) => nodes.has(k)) ?? places[0];
    rove(focus);
    circle();
    listen(own);
  }

  function key() {
    const items = [[{ style: "specks", colour: 4 }, P.front.length ? "evaluated" : "evaluated networks"]];
    if (P.front.length) items.push([{ style: "dots", colour: 1 }, "front of the search"]);
    items.push([{ style: "line", colour: 1, dash: 0 }, cost === "throughput" ? "best from each throughput on" : `best up to each ${UP_TO[cost]}`]);
    const list = legend(items.map(([look, name]) => ({ ...look, name })));
    if (byHand()) list.append(html("li", {}, svg("svg", { class: "swatch", viewBox: "0 0 26 16", "aria-hidden": "true" }, svg("path", { d: diamond(13, 8), class: "hand" })), "by hand: the largest, scaled"));
    if (P.inside.includes(0)) list.append(html("li", {}, svg("svg", { class: "swatch", viewBox: "0 0 26 12", "aria-hidden": "true" }, svg("circle", { cx: 13, cy: 6, r: 3.2, class: "point outside" })), "outside the limits"));
    return list;
  }

  function circle() {
    const dot = chosen === null ? null : view.nodes.get(chosen);
    view.ring.toggleAttribute("hidden", !dot);
    if (dot) put(view.ring, { cx: dot.getAttribute("cx"), cy: dot.getAttribute("cy") }, []);
    view.nodes.forEach((other, k) => other.getAttribute("role") && other.setAttribute("aria-pressed", k === chosen));
  }

  function rove(k) {
    const before = view.nodes.get(focus), now = view.nodes.get(k);
    if (before) before.setAttribute("tabindex", "-1");
    if (now) now.setAttribute("tabindex", "0");
    focus = k;
    return now;
  }

  function hover(k) {
    const at = beside(view.own, place, view.X(P[cost][k]), view.Y(P.accuracy[k]));
    view.tip.show(...at, [[P.key[k], role(k)].filter(Boolean).join(", "), ...describe(k)]);
  }

  /** The network nearest to a pointer; those of the front are preferred. */
  function nearest(event) {
    const [px, py] = pointer(view.own, event);
    let best = null, least = 28;
    for (const k of view.places) {
      const y = view.Y(P.accuracy[k]);
      const away = Math.hypot(view.X(P[cost][k]) - px, y - py) - (onFront.has(k) ? 3 : 0);
      if (away < least && y < view.bottom + 8) [best, least] = [k, away];
    }
    return best;
  }

  function listen(own) {
    own.addEventListener("pointermove", (event) => { const k = nearest(event); k === null ? view.tip.hide() : hover(k); });
    own.addEventListener("pointerleave", () => view.tip.hide());
    own.addEventListener("click", (event) => { const k = nearest(event); if (k !== null) { hover(k); choose(k); } });
    own.addEventListener("focusin", () => hover(focus));
    own.addEventListener("focusout", () => view.tip.hide());
    own.addEventListener("keydown", keys);
  }

  function keys(event) {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(focus); return; }
    const go = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    const end = { Home: 0, End: -1 }[event.key];
    if (go === undefined && end === undefined) return;
    event.preventDefault();
    const along = (event.shiftKey || !P.front.length ? view.places : P.front.filter((k) => view.nodes.has(k))).slice();
    along.sort((a, b) => P[cost][a] - P[cost][b] || P.accuracy[a] - P.accuracy[b]);
    const from = along.includes(focus) ? along.indexOf(focus) : along.findIndex((k) => P[cost][k] >= P[cost][focus]);
    const to = go === undefined ? along.at(end) : along[Math.min(Math.max(from + go, 0), along.length - 1)];
    const dot = rove(to);
    if (!dot.hasAttribute("role")) put(dot, { role: "button", "aria-label": `${P.key[to]}: ${describe(to).join(", ")}` }, []);
    dot.focus();
    hover(to);
  }

  // --- the chosen network ---

  function choose(k) {
    chosen = k;
    if (view) circle();
    const from = known(P.search[k]) ? `search ${P.search[k]}, round ${P.round[k]}` : P.kind[k] === "space" ? "drawn to measure the space" : "-";
    const rows = [["accuracy", say("percent", P.accuracy[k])], ...costs.map((c) => [NAMES[c], say(quantity(c), P[c][k])])];
    if (known(P.measured[k])) rows.push(["measured latency", say("seconds", P.measured[k])]);
    rows.push(["found in", from]);
    const arch = unpacked(P.archs, k), picture = P.drawings[P.key[k]];
    const parts = [html("h3", {}, P.key[k], role(k) ? html("small", {}, ` · ${role(k)}`) : null)];
    parts.push(html("dl", { class: "pairs" }, ...rows.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)))));
    if (picture) {
      const parsed = new DOMParser().parseFromString(picture, "image/svg+xml").documentElement;
      parts.push(html("div", { class: "drawing" }, document.importNode(parsed, true)));
    }
    parts.push(arch ? html("div", { class: picture ? "cards instead" : "cards" }, ...cards(arch, widths, squares)) : html("p", { class: "note" }, "Its architecture is in history.db; this page has no room for it."));
    if (onFront.has(k)) parts.push(html("pre", { class: "command screen", tabindex: 0 }, html("code", {}, `superformer retrain --run ${P.folder} --arch ${P.key[k]}`)));
    panel.replaceChildren(...parts);
    for (const button of document.querySelectorAll("button.key")) button.setAttribute("aria-pressed", button.dataset.key === P.key[k]);
  }

  function controls() {
    const box = document.getElementById("front-controls");
    const radios = costs.map((name) => {
      const input = html("input", { type: "radio", name: "cost", value: name, checked: name === cost });
      input.addEventListener("change", () => { cost = name; draw(); });
      return html("label", {}, input, ` ${NAMES[name]}`);
    });
    box.append(html("div", { class: "radios", role: "radiogroup", "aria-label": "Accuracy against" }, html("span", {}, "Accuracy against"), ...radios));
    if (P.front.length > 1 && P.front.length < n) {
      const zoom = html("input", { type: "checkbox", id: "near" });
      zoom.addEventListener("change", () => { near = zoom.checked; draw(); });
      box.append(html("label", {}, zoom, " only near the front"));
    }
    for (const button of document.querySelectorAll("button.key")) {
      button.addEventListener("click", () => {
        const k = P.front.find((place) => P.key[place] === button.dataset.key);
        if (!known(k)) return;
        choose(k);
        panel.scrollIntoView({ block: "nearest" });
      });
    }
  }

  controls();
  draw();
  if (n) choose(focus);
  return draw;
}
