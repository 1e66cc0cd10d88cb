"use strict";
// What a figure looks like: from the report's drawings to plotly's traces and layout.
// Nothing here touches the page; page.js decides when and where a figure is drawn.

const report = JSON.parse(document.getElementById("data").textContent);

// Curves differ in more than colour, for print and for colour-blind readers.
const DASHES = ["", "7px,4px", "2px,3px", "7px,3px,2px,3px", "13px,4px", "13px,3px,2px,3px"];
const SYMBOLS = {
  circle: "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0Z",
  square: "M-3.2,-3.2h6.4v6.4h-6.4Z",
  diamond: "M0,-4.5L4.5,0L0,4.5L-4.5,0Z",
  "triangle-up": "M0,-4.2L4.2,3.2H-4.2Z",
  "triangle-down": "M0,4.2L4.2,-3.2H-4.2Z",
  cross: "M-4,-1.5h2.5v-2.5h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5Z",
  bowtie: "M-4,-4L4,4V-4L-4,4Z",
  hourglass: "M-4,-4H4L-4,4H4Z",
};
const PATTERNS = ["", "/", "x", ".", "\\", "-"];
const NARROW = 620; // px; below, panels stand on top of each other

// plotly reads labels as a kind of HTML; names must stay names.
const plain = (text) =>
  String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const at = (list, index) => list[((index % list.length) + list.length) % list.length];

/** A colour as it looks on the page's background: lighter on a dark one, black turned to ink. */
function onPage(hex, theme, alpha = 1) {
  if (hex === "#000000") return alpha < 1 ? theme.rule : theme.ink;
  const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const mixed = parts.map((part) => (theme.dark ? Math.round(part + (255 - part) * 0.25) : part));
  return `rgba(${mixed.join(",")},${alpha})`;
}

function methodStyle(method) {
  const index = report.methods.indexOf(method);
  if (index < 0) return { colour: "#666666", symbol: "circle" };
  const lap = Math.floor(index / report.colours.length); // colours repeat, pairs with symbols do not
  return { colour: at(report.colours, index), symbol: at(Object.keys(SYMBOLS), index + lap) };
}

const isMethod = (name) => report.methods.includes(name);

/** Colour and pattern of one of several bars or areas that may or may not be methods. */
function seriesStyle(name, index) {
  if (isMethod(name)) return { colour: methodStyle(name).colour, pattern: "" };
  const lap = Math.floor(index / report.groups.length);
  return { colour: at(report.groups, index), pattern: at(PATTERNS, lap) };
}

/** Axis labels must differ, or plotly would draw two rows of one name as one. */
function unique(names) {
  const seen = new Map();
  return names.map((name) => {
    const count = (seen.get(name) || 0) + 1;
    seen.set(name, count);
    return plain(count > 1 ? `${name} (${count})` : name);
  });
}

function axis(theme, title, more = {}) {
  return {
    title: { text: plain(title), standoff: 10, font: { size: 13, color: theme.quiet } },
    gridcolor: theme.rule, linecolor: theme.rule, tickcolor: theme.rule,
    tickfont: { size: theme.tick, color: theme.quiet },
    zeroline: false, automargin: true, ...more,
  };
}

// ---- one function per kind of drawing -------------------------------------------------------
// Each returns {traces, x, y, keys}; `view` holds theme, off (methods), muted (series), axis.

function drawLines(drawing, view) {
  const traces = [], keys = [];
  for (const line of drawing.lines) {
    const xs = line.x[view.axis];
    if (!xs || view.off.has(line.method)) continue;
    const style = methodStyle(line.method), dash = at(DASHES, line.dash);
    const key = { name: line.name, colour: onPage(style.colour, view.theme), dash, symbol: style.symbol };
    keys.push(key);
    if (view.muted.has(line.name)) continue;
    if (line.low && line.high) traces.push(band(line, xs, style, view));
    traces.push({
      type: "scatter", mode: "lines+markers", name: plain(line.name), x: xs, y: line.y,
      meta: line.method, line: { color: key.colour, width: 2, dash: dash || "solid" },
      marker: { symbol: style.symbol, size: 7, maxdisplayed: 12, color: key.colour },
      hovertemplate: `%{y}<br>${plain(drawing.x_labels[view.axis])} %{x}<extra>%{fullData.name}</extra>`,
    });
  }
  const y = { ...valueAxis(drawing), ...(drawing.y_range ? { range: drawing.y_range } : {}) };
  return { traces, keys, x: { title: drawing.x_labels[view.axis], ...steps(drawing, traces, view) }, y };
}

/** Marks of the horizontal axis where plotly's own would mislead. */
function steps(drawing, traces, view) {
  if (view.axis !== "value") return wholeSteps(traces, view);
  if (drawing.categories.length) return { type: "category", categoryorder: "array", categoryarray: drawing.categories };
  const values = [...new Set(drawing.lines.flatMap((line) => line.x.value))].sort((a, b) => a - b);
  const marks = values.length > 12 ? {} : { tickvals: values, ticktext: values.map(String) };
  return { type: drawing.log ? "log" : "linear", ...marks };
}

/** There is no round 1.5. */
function wholeSteps(traces, view) {
  const xs = view.axis === "round" ? traces.flatMap((trace) => trace.x) : [];
  return xs.length && Math.max(...xs) - Math.min(...xs) <= 12 ? { dtick: 1 } : {};
}

/** The spread over seeds as one closed outline, so that it needs no second trace to fill to. */
function band(line, xs, style, view) {
  return {
    type: "scatter", mode: "lines", name: `${plain(line.name)} ± sd`, meta: line.method,
    x: [...xs, ...[...xs].reverse()], y: [...line.high, ...[...line.low].reverse()],
    fill: "toself", fillcolor: onPage(style.colour, view.theme, 0.15),
    line: { width: 0 }, hoverinfo: "skip",
  };
}

function valueAxis(drawing) {
  const more = drawing.percent ? { tickformat: ",.2~%", hoverformat: ".2%" } : { hoverformat: ".4~g" };
  return { title: drawing.y_label, rangemode: "normal", ...more };
}

function drawHeatmap(drawing, view) {
  const rows = unique(drawing.row_names), columns = unique(drawing.column_names);
  const trace = {
    type: "heatmap", z: drawing.values, x: columns, y: rows, colorscale: report.heat,
    zmin: drawing.low ?? undefined, zmax: drawing.high ?? undefined, zauto: drawing.low == null || drawing.high == null,
    hovertemplate: `${plain(drawing.row_label || "row")} %{y}<br>${plain(drawing.column_label || "column")} %{x}` +
      `<br>${plain(drawing.value_label)} %{z:.4~g}<extra></extra>`,
    colorbar: {
      title: { text: plain(drawing.value_label), side: "right", font: { size: 12, color: view.theme.quiet } },
      thickness: 8, outlinewidth: 0, len: 0.9, tickfont: { size: 11, color: view.theme.quiet },
    },
  };
  const room = (view.partWidth * 0.75) / columns.length;
  if (drawing.annotate && room > 30) { // zeros stay empty, so that the eye finds the rest
    const text = drawing.values.map((row) => row.map((value) => (value ? +value.toFixed(2) : "")));
    Object.assign(trace, { text, texttemplate: "%{text}", textfont: { size: 11 } });
  }
  const grid = { type: "category", showgrid: false };
  return {
    traces: [trace], keys: [], bars: drawing.bars, rows,
    x: { title: drawing.column_label, ...grid },
    y: { title: drawing.row_label, autorange: "reversed", ...grid },
  };
}

function drawDendrogram(drawing, view) {
  const strokes = new Map(); // by group; -1 joins different groups
  drawing.icoord.forEach((xs, i) => {
    const ys = drawing.dcoord[i], group = linkGroup(drawing, xs, Math.max(...ys));
    const stroke = strokes.get(group) || { x: [], y: [] };
    stroke.x.push(...xs, null);
    stroke.y.push(...ys, null);
    strokes.set(group, stroke);
  });
  const traces = [...strokes].sort((a, b) => a[0] - b[0]).map(([group, stroke]) => ({
    type: "scatter", mode: "lines", ...stroke, name: group < 0 ? "between groups" : `group ${group}`,
    line: { width: 1.5, color: group < 0 ? view.theme.quiet : onPage(at(report.groups, group), view.theme) },
    hovertemplate: "%{fullData.name}<br>merged at %{y:.4~g}<extra></extra>",
  }));
  const step = Math.ceil(drawing.leaves.length / Math.max(8, view.width / 22));
  const places = drawing.leaves.map((_, i) => i).filter((i) => i % step === 0);
  const keys = traces.map((t) => ({ name: t.name, colour: t.line.color, dash: "" }));
  return {
    traces: traces.filter((t) => !view.muted.has(t.name)), keys, cut: drawing.cut,
    x: { tickvals: places.map((i) => 5 + 10 * i), ticktext: places.map((i) => plain(drawing.leaves[i])),
         showgrid: false, range: [0, 10 * drawing.leaves.length] },
    y: { title: drawing.y_label, rangemode: "tozero" },
  };
}

/** The group a merge lies in, or -1. SciPy puts leaf i at 5 + 10 i and a merge above its leaves. */
function linkGroup(drawing, xs, height) {
  const groupAt = (x) => drawing.groups[Math.min(Math.floor(x / 10), drawing.groups.length - 1)];
  const isWhole = drawing.cut == null ? groupAt(xs[0]) === groupAt(xs[3]) : height <= drawing.cut;
  return isWhole ? groupAt(xs[0]) : -1;
}

function drawBars(drawing, view) {
  const shown = drawing.categories.map((_, i) => i).filter((i) => !view.off.has(drawing.categories[i]));
  const names = Object.keys(drawing.series).filter((name) => !view.off.has(name));
  const areMethods = drawing.categories.every(isMethod) && names.length === 1;
  const all = Object.keys(drawing.series), categories = unique(drawing.categories);
  const keys = [], traces = [];
  for (const name of names) {
    const style = seriesStyle(name, all.indexOf(name)), colour = onPage(style.colour, view.theme);
    if (names.length > 1) keys.push({ name, colour, pattern: style.pattern });
    if (view.muted.has(name)) continue;
    const own = shown.map((i) => onPage(methodStyle(drawing.categories[i]).colour, view.theme));
    traces.push({
      type: "bar", name: plain(name), meta: name, x: shown.map((i) => categories[i]),
      y: shown.map((i) => drawing.series[name][i]),
      marker: { color: areMethods ? own : colour, line: { width: 0 },
                pattern: { shape: style.pattern, solidity: 0.3, fgcolor: view.theme.paper } },
      hovertemplate: `%{x}<br>%{y}<extra>${all.length > 1 ? "%{fullData.name}" : ""}</extra>`,
    });
  }
  const y = { ...valueAxis(drawing), ...(drawing.log ? { type: "log", dtick: 1 } : {}) };
  return { traces, keys, stacked: drawing.stacked, x: { title: drawing.x_label, type: "category", showgrid: false }, y };
}

function drawViolins(drawing, view) {
  const traces = Object.entries(drawing.values).filter(([name]) => !view.off.has(name)).map(([name, values]) => {
    const style = seriesStyle(name, Object.keys(drawing.values).indexOf(name));
    const kept = values.filter((value) => value !== null);
    return {
      type: "violin", name: plain(name), meta: name, y: kept, x: kept.map(() => plain(name)),
      width: 0.7,
      points: kept.length > 60 ? false : "all", jitter: 0.3, pointpos: 0, spanmode: "hard",
      box: { visible: true, width: 0.12 }, meanline: { visible: true }, hoveron: "violins+points",
      line: { color: onPage(style.colour, view.theme), width: 1.5 },
      fillcolor: onPage(style.colour, view.theme, 0.25), marker: { size: 4, opacity: 0.7 },
    };
  });
  const beside = Math.max(0, 3 - traces.length) / 2; // one violin alone would fill the page
  const x = { type: "category", showgrid: false, range: [-0.5 - beside, traces.length - 0.5 + beside] };
  return { traces, keys: [], x, y: { title: drawing.y_label, hoverformat: ".4~g" } };
}

const DRAW = {
  Lines: drawLines, Heatmap: drawHeatmap, Dendrogram: drawDendrogram, Bars: drawBars, Violins: drawViolins,
};

// ---- a whole figure -------------------------------------------------------------------------

/** The drawings of a figure with their titles: one, or the panels. */
function partsOf(drawing) {
  return drawing.kind === "Panels" ? Object.entries(drawing.panels) : [["", drawing]];
}

/** Heat maps side by side share one scale, or equal colours would mean different numbers. */
function shareScale(parts) {
  const maps = parts.map(([, part]) => part).filter((part) => part.kind === "Heatmap");
  const all = maps.flatMap((map) => map.values.flat()).filter((value) => value !== null);
  const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
  return parts.map(([title, part]) => [title,
    part.kind === "Heatmap" ? { ...part, low: part.low ?? low, high: part.high ?? high } : part]);
}

function partHeight(part, width) {
  if (part.kind !== "Heatmap") return 330;
  const rows = part.row_names.length, columns = part.column_names.length;
  if (rows === columns) return Math.min(620, Math.max(260, width * 0.9));
  return Math.min(620, 110 + Math.max(rows * 22, 150));
}

/** Where part `index` of `count` lies, as fractions of the drawing area. */
function cell(index, count, isStacked) {
  const gap = isStacked ? 0.3 / count : 0.06;
  const size = (1 - gap * (count - 1)) / count;
  const start = index * (size + gap);
  return isStacked
    ? { x: [0, 1], y: [1 - start - size, 1 - start] }
    : { x: [start, start + size], y: [0, 1] };
}

/** plotly's traces and layout for a figure, and the keys to show below it. */
function plan(drawing, view) {
  const raw = partsOf(drawing);
  const parts = raw.length > 1 ? shareScale(raw) : raw;
  const isStacked = view.width < NARROW;
  view.partWidth = view.width / (isStacked ? 1 : parts.length);
  const height = partHeight(parts[0][1], view.partWidth) * (isStacked ? parts.length : 1);
  const layout = baseLayout(view, height, parts.length > 1);
  const traces = [], keys = new Map();
  parts.forEach(([title, part], index) => {
    const drawn = DRAW[part.kind](part, view), place = cell(index, parts.length, isStacked);
    const id = index ? String(index + 1) : "";
    // One scale serves all panels: only the last shows it.
    drawn.traces.forEach((t) => t.type === "heatmap" && (t.showscale = index === parts.length - 1));
    traces.push(...drawn.traces.map((trace) => ({ ...trace, xaxis: `x${id}`, yaxis: `y${id}` })));
    layout[`xaxis${id}`] = axis(view.theme, drawn.x.title || "", { ...drop(drawn.x), domain: place.x, anchor: `y${id}` });
    layout[`yaxis${id}`] = axis(view.theme, index && !isStacked ? "" : drawn.y.title || "", { ...drop(drawn.y), domain: place.y, anchor: `x${id}` });
    // Panels beside each other have the same rows: naming them once is enough.
    if (index && !isStacked) layout[`yaxis${id}`].showticklabels = part.kind !== "Heatmap";
    if (drawn.stacked) layout.barmode = "stack";
    if (drawn.cut != null) addCut(layout, drawn.cut, view.theme);
    if (drawn.bars) addGroupStrip(traces, layout, drawn, place, index, view);
    if (title) layout.annotations.push(heading(title, place, view.theme));
    drawn.keys.forEach((key) => keys.set(key.name, key));
  });
  return { traces, layout, keys: [...keys.values()] };
}

const drop = ({ title, ...rest }) => rest;

function baseLayout(view, height, hasTitles) {
  const { theme } = view;
  return {
    width: view.width, height, margin: { l: 48, r: 12, t: hasTitles ? 34 : 10, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { family: theme.font, size: 13, color: theme.ink }, bargap: 0.25, violingap: 0.2,
    hoverlabel: { bgcolor: theme.paper, bordercolor: theme.rule, font: { color: theme.ink, size: 13 }, align: "left", namelength: -1 },
    dragmode: view.touch ? false : "zoom", shapes: [], annotations: [],
  };
}

function heading(title, place, theme) {
  return {
    text: plain(title), showarrow: false, xref: "paper", yref: "paper", x: place.x[0], y: place.y[1],
    xanchor: "left", yanchor: "bottom", yshift: 6, font: { size: 13, color: theme.ink },
  };
}

function addCut(layout, height, theme) {
  const line = { color: theme.ink, width: 1, dash: "4px,4px" };
  layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: height, y1: height, line });
  layout.annotations.push({
    text: "cut", xref: "paper", x: 1, y: height, xanchor: "right", yanchor: "bottom", showarrow: false,
    font: { size: 12, color: theme.ink },
  });
}

/** A narrow column of colours beside a heat map: the group of every row. */
function addGroupStrip(traces, layout, drawn, place, index, view) {
  const id = String(index + 51); // far from the axes of the panels
  const used = [...new Set(drawn.bars)].sort((a, b) => a - b), last = Math.max(used.length - 1, 1);
  const scale = used.map((group, i) => [i / last, onPage(at(report.groups, group), view.theme)]);
  const width = 12 / view.width;
  layout[`xaxis${index ? index + 1 : ""}`].domain = [place.x[0] + width * 1.6, place.x[1]];
  layout[`xaxis${id}`] = { domain: [place.x[0], place.x[0] + width], visible: false, anchor: `y${index ? index + 1 : ""}` };
  layout[`yaxis${index ? index + 1 : ""}`].anchor = `x${id}`;
  traces.push({
    type: "heatmap", x: ["group"], y: drawn.rows, z: drawn.bars.map((group) => [used.indexOf(group)]),
    text: drawn.bars.map((group) => [`group ${group}`]), hovertemplate: "%{y}: %{text}<extra></extra>",
    zmin: 0, zmax: last, colorscale: scale.length > 1 ? scale : [[0, scale[0][1]], [1, scale[0][1]]],
    showscale: false, xaxis: `x${id}`, yaxis: `y${index ? index + 1 : ""}`,
  });
}
