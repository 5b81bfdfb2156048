// An architecture as cards, one for each block: for any network, and for narrow screens.

/** An architecture from its numbers. */
function unpacked(archs, k) {
  const code = archs.codes[k];
  if (!code) return null;
  const [head, ...stages] = code;
  return { ...archs.heads[head], stages: stages.map(([values, ...blocks]) => ({ values: archs.values[values], blocks: blocks.map((b) => archs.blocks[b]) })) };
}

const worded = (name, value) => (name === "type" ? String(value) : name === "heads" ? `${value} heads` : `${name} ${value}`);
const listed = (values) => Object.entries(values).map(([name, value]) => worded(name, value));

/** Bars are multiples of the stage's width, so that stages can be compared. */
function cards(arch, widths, squares) {
  const bars = Object.keys(widths).filter((name) => arch.stages.some((s) => s.blocks.some((b) => b[name] > 0)));
  const base = (stage) => stage.values.width || arch.choices.width || 1;
  const full = {};
  for (const name of bars) full[name] = Math.max(...arch.stages.flatMap((s) => s.blocks.map((b) => (b[name] || 0) / base(s))));
  const out = [html("p", {}, [`picture ${arch.resolution} × ${arch.resolution}`, ...listed(arch.choices), ...listed(arch.options)].join(" · "))];
  arch.stages.forEach((stage, i) => {
    const count = stage.blocks.length === 1 ? "1 block" : `${stage.blocks.length} blocks`;
    out.push(html("p", { class: "stage" }, html("b", {}, `Stage ${i + 1}`), ` ${[...listed(stage.values), count].join(" · ")}`));
    out.push(html("ol", { class: "blocks" }, ...stage.blocks.map((block) => card(block, bars, full, base(stage), squares))));
  });
  out.push(html("p", { class: "note" }, bars.map((name, k) => html("span", { class: `tag c${k % 4}` }, `${name}: ${widths[name]}`).textContent).join("; ")));
  return out;
}

function card(block, bars, full, base, squares) {
  const shown = bars.filter((name) => block[name] > 0);
  const columns = shown.map((name) => {
    const bar = html("i", { class: `bar c${bars.indexOf(name) % 4}` });
    bar.style.height = Math.max((48 * block[name]) / base / full[name], 2) + "px";
    return html("span", { class: "column" }, bar, html("span", {}, String(block[name])), html("small", {}, name));
  });
  const words = Object.entries(block).filter(([name]) => !shown.includes(name)).map(([name, value]) => (name in squares ? `${name} ${value} × ${value}` : worded(name, value)));
  return html("li", { title: listed(block).join(", ") }, html("span", { class: "columns" }, ...columns), ...words.map((w) => html("span", { class: "said" }, w)));
}
