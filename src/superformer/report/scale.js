// Elements, scales, numbers in words, and the frame of a chart.

const SVG = "http://www.w3.org/2000/svg";

function put(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, typeof value === "number" ? +value.toFixed(2) : value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const svg = (name, attributes, ...children) => put(document.createElementNS(SVG, name), attributes, children);
const html = (name, attributes, ...children) => put(document.createElement(name), attributes, children);
const known = (value) => value !== null && value !== undefined;

// --- numbers ---

const UNITS = {
  amount: [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]],
  bytes: [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  rate: [[1e3, "k/s"], [1, "/s"]],
  seconds: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
  percent: [[1, "%"]],
};

/** The unit in which values up to `high` are read best. */
function unit(quantity, high) {
  const units = UNITS[quantity];
  if (!units) return [1, ""];
  return units.find(([size]) => Math.abs(high) >= 0.9995 * size) || units[units.length - 1];
}

const plain = (value, digits) => String(+value.toPrecision(digits)).replace("-", "\u2212");

/** A value with its unit. */
function say(quantity, value) {
  if (!known(value)) return "\u2013";
  if (quantity === "percent") return value.toFixed(2).replace("-", "\u2212") + " %";
  if (quantity === "whole") return Math.round(value).toLocaleString("en");
  const [size, name] = unit(quantity, value);
  return plain(value / size, 4) + (name ? " " + name : "");
}

/** About `count` round numbers between two ends. */
function ticks(low, high, count, whole) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  let step = power * ([1, 2, 2.5, 5, 10].find((m) => power * m * count >= span * 0.999) || 10);
  if (whole) step = Math.max(1, Math.round(step));
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k++) out.push(+(k * step).toPrecision(12));
  return out;
}

/** The ends of an axis: of its values, with what must be seen and some room. */
function ends(values, axis, room) {
  const all = values.filter(known).concat([axis.low, axis.high].filter(known));
  let low = Math.min(...all), high = Math.max(...all);
  if (!all.length) [low, high] = [0, 1];
  if (low === high) {
    const around = axis.quantity === "percent" ? 1 : Math.abs(low) / 10 || 1;
    [low, high] = [low - around, high + around];
  }
  const more = (high - low) * room, full = axis.quantity === "percent" ? 100 : Infinity;
  const down = low >= 0 && (low === 0 || axis.quantity === "percent") ? Math.max(low - more, 0) : low - more;
  return [down, high <= full ? Math.min(high + more, full) : high + more];
}

// --- the frame of a chart ---

/** Axes with ticks and titles. Gives the drawing, and where values lie in it. */
function frame(width, height, x, y, small) {
  const size = small ? 11 : 12;
  const [xSize, xName] = unit(x.quantity, Math.max(...x.ends.map(Math.abs)));
  const [ySize, yName] = unit(y.quantity, Math.max(...y.ends.map(Math.abs)));
  const yTicks = y.ticks || ticks(...y.ends, small ? 3 : height / 55, y.quantity === "whole");
  const yWords = yTicks.map((v) => plain(v / ySize, 6));
  const left = Math.max(...yWords.map((w) => w.length), 1) * size * 0.6 + 12;
  const top = y.title ? 26 : 8, bottom = height - (x.title ? (small ? 36 : 42) : 22), right = width - 10;
  const X = (v) => left + ((v - x.ends[0]) / (x.ends[1] - x.ends[0])) * (right - left);
  const Y = (v) => bottom - ((v - y.ends[0]) / (y.ends[1] - y.ends[0])) * (bottom - top);
  const own = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawn" });
  const titled = (title, name) => title + (name ? ` (${name})` : "");
  if (y.title) own.append(svg("text", { x: 0, y: 13, class: "title" }, titled(y.title, yName)));
  yTicks.forEach((v, k) => {
    own.append(svg("path", { d: `M${left} ${Y(v).toFixed(1)}H${right}`, class: "gridline" }));
    own.append(svg("text", { x: left - 6, y: Y(v) + 4, class: "tick", "text-anchor": "end", "font-size": size }, yWords[k]));
  });
  own.append(svg("path", { d: `M${left} ${bottom}H${right}`, class: "axis" }));
  for (const v of x.ticks || ticks(...x.ends, (right - left) / (small ? 50 : 75), x.quantity === "whole")) {
    const word = x.names ? x.names[v] || "" : x.quantity === "whole" ? v.toLocaleString("en") : plain(v / xSize, 6);
    own.append(svg("text", { x: X(v), y: bottom + 17, class: "tick", "text-anchor": "middle", "font-size": size }, word));
    own.append(svg("path", { d: `M${X(v).toFixed(1)} ${bottom}v4`, class: "axis" }));
  }
  if (x.title) own.append(svg("text", { x: right, y: height - 4, class: "title", "text-anchor": "end" }, titled(x.title, xName)));
  return { own, X, Y, left, right, top, bottom };
}

/** A small box of words beside a place of a chart. */
function tooltip(place) {
  const box = html("div", { class: "tip", role: "status", hidden: true });
  place.append(box);
  return {
    show(x, y, lines) {
      box.replaceChildren(...lines.map((line, k) => html(k ? "span" : "b", {}, line)));
      box.hidden = false;
      const left = Math.min(Math.max(x - box.offsetWidth / 2, 0), place.clientWidth - box.offsetWidth);
      box.style.left = left + "px";
      box.style.top = (y - box.offsetHeight - 12 >= -20 ? y - box.offsetHeight - 12 : y + 16) + "px";
    },
    hide() { box.hidden = true; },
  };
}

/** Where a place of a drawing is in the element that holds it. */
function beside(own, place, x, y) {
  const box = own.getBoundingClientRect(), scale = box.width / own.viewBox.baseVal.width;
  return [x * scale, box.top - place.getBoundingClientRect().top + y * scale];
}

/** Where a pointer is in a drawing. */
function pointer(own, event) {
  const box = own.getBoundingClientRect(), view = own.viewBox.baseVal;
  return [((event.clientX - box.left) / box.width) * view.width, ((event.clientY - box.top) / box.height) * view.height];
}
