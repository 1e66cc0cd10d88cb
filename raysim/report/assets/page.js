// How the page behaves: when figures are drawn, and what the controls do.

const state = { off: new Set(), axis: "", run: "", isPrint: false, theme: document.documentElement.dataset.theme };
const PRINT_WIDTH = 660; // px; fits A4 and Letter with the margins of page.css
const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false, doubleClick: "reset" };

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function themeNow() {
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(`--${name}`).trim();
  return {
    ink: colour("ink"), quiet: colour("quiet"), rule: colour("rule"), paper: colour("paper"),
    font: getComputedStyle(document.body).fontFamily, dark: document.documentElement.dataset.theme === "dark",
  };
}

// ---- figures --------------------------------------------------------------------------------

const figures = all("figure").map((element) => ({
  element, drawing: report.figures[element.dataset.index].drawing, run: element.dataset.run,
  plot: element.querySelector(".plot"), isNear: false, isStale: true, muted: new Set(),
}));

function widthOf(figure) {
  if (state.isPrint) return PRINT_WIDTH;
  const room = figure.plot.clientWidth;
  const isSquare = figure.drawing.kind === "Heatmap" && figure.drawing.row_names.length === figure.drawing.column_names.length;
  return isSquare ? Math.min(room, 720) : room;
}

function viewOf(figure) {
  const axes = Object.keys(figure.drawing.x_labels || {});
  const width = widthOf(figure);
  return {
    theme: { ...themeNow(), tick: width < NARROW ? 11 : 12 }, off: state.off, muted: figure.muted, width,
    axis: axes.includes(state.axis) ? state.axis : axes[0], touch: matchMedia("(pointer: coarse)").matches,
  };
}

function draw(figure) {
  const view = viewOf(figure), planned = plan(figure.drawing, view);
  figure.isStale = false;
  figure.plot.style.minHeight = 0; // it held the place until now
  Plotly.react(figure.plot, planned.traces, planned.layout, CONFIG);
  showKeys(figure, planned.keys);
  showAxes(figure, view.axis);
}

/** Redraw what is on the screen now; the rest when it gets there. */
function refresh() {
  for (const figure of figures) {
    figure.isStale = true;
    if (figure.isNear || state.isPrint) draw(figure);
  }
  refreshRows();
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** A short stroke with its marker, or a square: what a series looks like. */
function keyImage({ colour, dash, symbol, pattern }) {
  const ns = "http://www.w3.org/2000/svg", isLine = dash !== undefined;
  const svg = document.createElementNS(ns, "svg"), path = document.createElementNS(ns, "path");
  svg.setAttribute("viewBox", isLine ? "-14 -6 28 12" : "-6 -6 12 12");
  svg.setAttribute("aria-hidden", "true");
  if (isLine) {
    const stroke = document.createElementNS(ns, "path");
    const look = { d: "M-14,0H14", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash.replace(/px/g, "") };
    Object.entries(look).forEach(([name, value]) => stroke.setAttribute(name, value));
    svg.append(stroke);
  }
  path.setAttribute("d", isLine ? SYMBOLS[symbol] || "" : "M-5,-5h10v10h-10Z");
  path.setAttribute("fill", colour);
  if (pattern) path.setAttribute("fill-opacity", "0.55");
  svg.append(path);
  return svg;
}

function showKeys(figure, keys) {
  const buttons = keys.map((key) => {
    const button = element("button", { type: "button" }, keyImage(key), key.name);
    button.setAttribute("aria-pressed", String(!figure.muted.has(key.name)));
    button.onclick = () => {
      if (!figure.muted.delete(key.name)) figure.muted.add(key.name);
      draw(figure);
    };
    return button;
  });
  swap(figure.element.querySelector(".keys"), buttons);
}

function showAxes(figure, chosen) {
  const labels = Object.entries(figure.drawing.x_labels || {});
  if (labels.length < 2) return;
  const buttons = labels.map(([name, label]) => {
    const button = element("button", { type: "button", value: name }, label);
    button.setAttribute("aria-pressed", String(name === chosen));
    button.onclick = () => { state.axis = name; refresh(); };
    return button;
  });
  swap(figure.element.querySelector(".axes"), buttons);
}

/** Show the figures of one tab and hide those of the others. */
function chooseTab(chosen) {
  const own = figures.filter((figure) => figure.element.dataset.tab);
  own.forEach((figure) => { figure.element.hidden = figure.element.dataset.tab !== chosen; });
  const buttons = [...new Set(own.map((figure) => figure.element.dataset.tab))].map((tab) => {
    const button = element("button", { type: "button" }, tab);
    button.setAttribute("aria-pressed", String(tab === chosen));
    button.onclick = () => chooseTab(tab);
    return button;
  });
  all(".tabs").forEach((box) => swap(box, buttons));
}

/** Replace buttons without taking the focus from a person at the keyboard. */
function swap(box, buttons) {
  const focused = [...box.children].indexOf(document.activeElement);
  box.replaceChildren(...buttons);
  if (focused >= 0) buttons[focused]?.focus({ preventScroll: true });
}

const nearness = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const figure = figures.find((one) => one.element === entry.target);
    figure.isNear = entry.isIntersecting;
    if (figure.isNear && figure.isStale) draw(figure);
  }
}, { rootMargin: "600px" });

// ---- methods and runs -----------------------------------------------------------------------

function paintToggles() {
  all(".methods input").forEach((input) => {
    const style = methodStyle(report.methods[input.value]);
    const image = keyImage({ colour: onPage(style.colour, themeNow()), dash: "", symbol: style.symbol });
    input.parentElement.querySelector(".key").replaceChildren(image);
  });
}

function toggleMethod(input) {
  const method = report.methods[input.value];
  if (input.checked) state.off.delete(method);
  else state.off.add(method);
  refresh();
}

function chooseRun(run) {
  figures.filter((figure) => figure.run).forEach((figure) => { figure.element.hidden = figure.run !== run; });
}

// ---- tables ---------------------------------------------------------------------------------

function refreshRows() {
  for (const section of all("section.table")) {
    const wanted = (section.querySelector(".filter input")?.value || "").trim().toLowerCase();
    let shown = 0;
    for (const row of all("tbody tr", section)) {
      const isOff = row.dataset.methods.split(" ").some((i) => i && state.off.has(report.methods[i]));
      row.hidden = isOff || !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    const count = section.querySelector(".filter output");
    if (count) count.textContent = `${shown.toLocaleString("en")} rows`;
  }
}

/** Sort by the full values; large numbers first, words from a to z, then the other way round. */
function sortBy(head) {
  const table = head.closest("table"), index = head.cellIndex, isNumber = head.classList.contains("number");
  const first = isNumber ? "descending" : "ascending", second = isNumber ? "ascending" : "descending";
  const order = head.getAttribute("aria-sort") === first ? second : first;
  const sign = order === "ascending" ? 1 : -1;
  const value = (row) => row.cells[index].dataset.value;
  const rows = all("tbody tr", table).sort((a, b) => {
    if (!value(a) || !value(b)) return (value(a) ? 0 : 1) - (value(b) ? 0 : 1); // empty cells last
    return sign * (isNumber ? value(a) - value(b) : value(a).localeCompare(value(b), "en", { numeric: true }));
  });
  table.tBodies[0].append(...rows);
  all("th", table).forEach((th) => th.setAttribute("aria-sort", th === head ? order : "none"));
}

// ---- the rest -------------------------------------------------------------------------------

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  paintToggles();
  refresh();
}

function setPrint(isPrint) {
  if (state.isPrint === isPrint) return;
  state.isPrint = isPrint;
  setTheme(isPrint ? "light" : state.theme);
}

async function copy(button) {
  const text = button.nextElementSibling;
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch { // a browser may refuse this for files; select it, so that the person can copy
    getSelection().selectAllChildren(text);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function start() {
  const system = matchMedia("(prefers-color-scheme: dark)"), print = matchMedia("print");
  system.addEventListener("change", () => {
    state.theme = system.matches ? "dark" : "light";
    if (!state.isPrint) setTheme(state.theme);
  });
  print.addEventListener("change", () => setPrint(print.matches));
  addEventListener("beforeprint", () => setPrint(true));
  addEventListener("afterprint", () => setPrint(false));
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width || state.isPrint) return; // phones resize when their bars come and go
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(refresh, 120);
  });
  document.getElementById("theme").onclick = () => {
    state.theme = state.theme === "dark" ? "light" : "dark";
    setTheme(state.theme);
  };
  all(".methods input").forEach((input) => { input.onchange = () => toggleMethod(input); });
  all("th button").forEach((button) => { button.onclick = () => sortBy(button.parentElement); });
  all(".filter input").forEach((input) => { input.oninput = refreshRows; });
  all("button.copy").forEach((button) => { button.onclick = () => copy(button); });
  const select = document.getElementById("run");
  if (select) {
    select.onchange = () => chooseRun(select.value);
    chooseRun(select.value);
  }
  chooseTab(document.querySelector("#swept figure")?.dataset.tab);
  setTheme(state.theme);
  figures.forEach((figure) => nearness.observe(figure.element));
}

start();
