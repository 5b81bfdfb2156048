// Plots, bars and heat maps, from the values that the page holds.

const swatch = (line) => svg("svg", { class: "swatch", viewBox: "0 0 26 12", "aria-hidden": "true" }, mark(line, 13, 6, 26));

/** What a series looks like, in a legend. */
function mark(line, x, y, wide) {
  if (line.style === "dots" || line.style === "specks") {
    return svg("circle", { cx: x, cy: y, r: line.style === "dots" ? 4.5 : 2.5, class: `fill c${line.colour}` });
  }
  return svg("path", { d: `M${x - wide / 2} ${y}h${wide}`, class: `line c${line.colour} d${line.dash}` });
}

function legend(lines) {
  return html("ul", { class: "legend" }, ...lines.map((line) => html("li", {}, swatch(line), line.name)));
}

/** The path of a line; a missing value breaks it. */
function path(line, X, Y) {
  let out = "", open = false, last = 0;
  line.x.forEach((x, k) => {
    const y = line.y[k];
    if (!known(x) || !known(y)) { open = false; return; }
    const at = `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
    out += !open ? `M${at}` : line.style === "step" ? `L${X(x).toFixed(1)} ${Y(last).toFixed(1)}L${at}` : `L${at}`;
    [open, last] = [true, y];
  });
  return out;
}

function plot(place, spec) {
  const width = place.clientWidth, height = spec.small ? 130 : Math.round(Math.min(Math.max(width * 0.5, 230), 340));
  const every = (name) => spec.series.flatMap((line) => line[name]);
  const dots = spec.series.some((line) => line.style === "dots");
  const x = { ...spec.x, ends: ends(every("x"), spec.x, 0.005), ticks: spec.ticks };
  if (spec.ticks || spec.x.names || dots) x.ends = [x.ends[0] - 0.1 * (x.ends[1] - x.ends[0]), x.ends[1] + 0.1 * (x.ends[1] - x.ends[0])];
  const y = { ...spec.y, ends: ends(every("y"), spec.y, spec.small ? 0.12 : 0.06), ticks: spec.heights };
  if (spec.diagonal) x.ends = y.ends = [0, 1.05 * Math.max(x.ends[1], y.ends[1], spec.limit || 0)];
  const { own, X, Y, left, right, top, bottom } = frame(width, height, x, y, spec.small);
  own.setAttribute("role", "img");
  own.setAttribute("aria-label", spec.label);
  if (spec.diagonal) {
    const end = x.ends[1], low = 1 - spec.band, high = 1 + spec.band;
    own.append(svg("path", { d: `M${X(0)} ${Y(0)}L${X(end)} ${Y(end * low)}V${Y(end)}L${X(end / high)} ${Y(end)}Z`, class: "band" }));
    own.append(svg("path", { d: `M${X(0)} ${Y(0)}L${X(end)} ${Y(end)}`, class: "axis" }));
    if (spec.limit) {
      own.append(svg("path", { d: `M${X(spec.limit)} ${bottom}V${Y(spec.limit)}H${left}`, class: "limit" }));
      own.append(svg("text", { x: X(spec.limit) + 6, y: bottom - 6, class: "tick" }, `limit ${say(spec.x.quantity, spec.limit)}`));
    }
  }
  for (const line of spec.marks || []) {
    own.append(svg("path", { d: `M${X(line.x).toFixed(1)} ${top}V${bottom}`, class: "limit" }));
    const late = X(line.x) > (left + right) / 2;
    own.append(svg("text", { x: X(line.x) + (late ? -5 : 5), y: top + 11, class: "tick", "font-size": 11, "text-anchor": late ? "end" : "start" }, line.text));
  }
  for (const line of spec.series) {
    if (line.style === "specks") {
      const d = line.x.map((v, k) => (known(line.y[k]) ? `M${X(v).toFixed(1)} ${Y(line.y[k]).toFixed(1)}h0` : "")).join("");
      own.append(svg("path", { d, class: `specks c${line.colour}` }));
      continue;
    }
    if (line.style !== "dots") own.append(svg("path", { d: path(line, X, Y), class: `line c${line.colour} d${line.dash}` }));
    if (line.style === "dots" || line.style === "range" || (line.style === "both" && line.x.length < 40)) {
      const r = line.style === "both" ? 3 : spec.small ? 4 : 5;
      line.x.forEach((v, k) => known(line.y[k]) && own.append(svg("circle", { cx: X(v), cy: Y(line.y[k]), r, class: `fill c${line.colour}` })));
    }
  }
  place.append(...(spec.series.length > 1 && !spec.small ? [legend(spec.series)] : []), own);
  if (!spec.small) explore(place, own, spec, X, Y, [top, bottom]);
}

/** Values under the pointer, and with the arrow keys. */
function explore(place, own, spec, X, Y, [top, bottom]) {
  const tip = tooltip(place), cursor = svg("path", { class: "cursor" });
  const spots = spec.series.flatMap((line) => line.x.map((x, k) => ({ line, x, y: line.y[k] }))).filter((s) => known(s.x) && known(s.y));
  spots.sort((a, b) => a.x - b.x || a.y - b.y);
  own.append(cursor);
  let at = -1;
  function show(k) {
    at = k;
    const spot = spots[k], shared = spots.filter((s) => s.x === spot.x);
    const lines = (spec.together ? shared : [spot]).map((s) => `${s.line.name}: ${say(spec.y.quantity, s.y)}`);
    cursor.setAttribute("d", `M${X(spot.x).toFixed(1)} ${top}V${bottom}`);
    tip.show(...beside(own, place, X(spot.x), Y(spot.y)), [`${spec.x.title} ${spec.x.names ? spec.x.names[spot.x] : say(spec.x.quantity, spot.x)}`, ...lines]);
  }
  function hide() { tip.hide(); cursor.removeAttribute("d"); }
  own.addEventListener("pointermove", (event) => {
    const [px, py] = pointer(own, event);
    let best = -1, least = Infinity;
    spots.forEach((s, k) => {
      const away = Math.abs(X(s.x) - px) + (spec.together ? 0.01 : 1) * Math.abs(Y(s.y) - py);
      if (away < least) [best, least] = [k, away];
    });
    if (best >= 0) show(best);
  });
  own.addEventListener("pointerleave", hide);
  own.addEventListener("blur", hide);
  own.setAttribute("tabindex", "0");
  own.addEventListener("keydown", (event) => {
    const go = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!go || !spots.length) return;
    event.preventDefault();
    let k = at;
    do k += go; while (spec.together && spots[k] && at >= 0 && spots[k].x === spots[at].x);
    if (spots[k]) show(k);
  });
}

function bars(place, spec) {
  const width = place.clientWidth, thick = 20, groups = new Set(spec.rows.map((r) => r.group).filter(known));
  const high = Math.max(...spec.rows.map((r) => Math.max(r.value || 0, r.to || 0)), 0) || 1;
  const [size, name] = unit(spec.x.quantity, high);
  const words = spec.rows.map((r) => say(spec.x.quantity, r.value) + (known(r.to) ? `, p90 ${say(spec.x.quantity, r.to)}` : ""));
  const left = Math.min(Math.max(...spec.rows.map((r) => r.name.length)) * 7.2 + 14, width * 0.4);
  const right = width - Math.max(...words.map((w) => w.length)) * 6.4 - 12;
  const X = (v) => left + (v / high) * (right - left);
  let y = 4, group = null;
  const own = svg("svg", { class: "drawn", role: "img", "aria-label": spec.label });
  spec.rows.forEach((row, k) => {
    if (groups.size && row.group !== group) {
      own.append(svg("text", { x: 0, y: y + 16, class: "title" }, row.group));
      [group, y] = [row.group, y + 26];
    }
    own.append(svg("text", { x: left - 8, y: y + 15, class: "name", "text-anchor": "end" }, row.name));
    own.append(svg("rect", { x: left, y, width: Math.max(X(row.value) - left, 1), height: thick, rx: 2, class: `fill c${row.colour}` }));
    if (known(row.to)) own.append(svg("path", { d: `M${X(row.value)} ${y + thick / 2}H${X(row.to)}m0 -5v10`, class: "whisker" }));
    own.append(svg("text", { x: Math.max(X(row.value), X(row.to || 0)) + 6, y: y + 15, class: "value" }, words[k]));
    own.append(svg("path", { d: `M${left} ${y - 4}v${thick + 8}`, class: "axis" }));
    y += thick + 8;
  });
  own.append(svg("text", { x: left, y: y + 16, class: "title" }, `${spec.x.title} (${name || size})`));
  own.setAttribute("viewBox", `0 0 ${width} ${y + 24}`);
  place.append(own);
}

function heat(place, spec) {
  const width = place.clientWidth, tall = spec.rows.length > 24 ? 12 : 16, short = width < 520;
  const words = spec.rows.map((name) => (short ? name.replace("stages.", "").replace("blocks.", "b") : name));
  const left = Math.max(...words.map((w) => w.length)) * 6.4 + 8, right = width - 4, bottom = spec.rows.length * tall;
  const wide = (right - left) / spec.columns.length;
  const own = svg("svg", { class: "drawn", viewBox: `0 0 ${width} ${bottom + 40}`, role: "img", "aria-label": spec.label });
  spec.values.forEach((row, i) => {
    own.append(svg("text", { x: left - 6, y: i * tall + tall * 0.75, class: "tick", "text-anchor": "end", "font-size": 11 }, words[i]));
    row.forEach((v, k) => {
      if (!known(v)) {
        own.append(svg("path", { d: `M${(left + k * wide + 1).toFixed(1)} ${(i + 1) * tall - 3}L${(left + (k + 1) * wide - 1).toFixed(1)} ${i * tall + 2}`, class: "gridline" }));
        return;
      }
      const cell = { x: left + k * wide, y: i * tall, width: wide + 0.3, height: tall - 1, "fill-opacity": Math.min(Math.abs(v), 1) };
      const where = `${spec.rows[i]}, ${spec.x} ${say("number", spec.columns[k])}: ${spec.what} ${plain(v, 3)}`;
      own.append(svg("rect", { ...cell, class: v < 0 || spec.low === 0 ? "fill c1" : "fill c0" }, svg("title", {}, where)));
    });
  });
  const first = spec.columns[0], last = spec.columns.at(-1);
  for (const v of ticks(first, last, Math.min((right - left) / 75, spec.columns.length))) {
    const x = left + wide / 2 + ((v - first) / (last - first || 1)) * (right - left - wide);
    own.append(svg("text", { x, y: bottom + 15, class: "tick", "text-anchor": "middle", "font-size": 11 }, plain(v, 6)));
  }
  own.append(svg("text", { x: right, y: bottom + 34, class: "title", "text-anchor": "end" }, spec.x));
  const marks = spec.low ? [-1, -0.5, 0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  const shade = (v) => svg("svg", { class: "swatch", viewBox: "0 0 26 12", "aria-hidden": "true" }, svg("rect", { width: 26, height: 12, "fill-opacity": Math.abs(v), class: v < 0 || !spec.low ? "fill c1 edged" : "fill c0 edged" }));
  place.append(html("ul", { class: "legend" }, html("li", {}, spec.what), ...marks.map((v) => html("li", {}, shade(v), plain(v, 2)))), own);
}

const KINDS = { plot, bars, heat };
