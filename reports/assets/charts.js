// Charts: plotly is started when the page has been shown, and follows the system theme, chips and the printer.
"use strict";
(function () {
  const boxes = ddiag.$(".plot");
  const sources = new Map();
  const chosen = new Map();
  const PAPER_WIDTH = 660;
  ddiag.plots = { drawn: 0, wanted: boxes.length };
  if (!boxes.length) { ddiag.dim = () => {}; return; }

  function start() {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly-source").textContent;
    document.head.append(script);
    script.remove();
  }
  function figureOf(box) {
    const id = box.dataset.figure;
    if (!sources.has(id)) sources.set(id, document.getElementById(id).textContent);
    let text = sources.get(id);
    if (ddiag.isDark()) text = text.replace(/#[0-9a-f]{6}\b/g, (hex) => ddiag.data.dark[hex] || hex);
    const figure = JSON.parse(text);
    narrow(figure, box.clientWidth);
    apply(figure, id.slice(4));
    highlight(figure, id.slice(4));
    return figure;
  }
  function narrow(figure, width) {
    if (width > 560) return;
    const { layout, data } = figure;
    for (const name of ["xaxis", "yaxis"]) if (layout[name]) {
      layout[name].tickfont.size = 11;
      if (layout[name].title.text) layout[name].title = { ...layout[name].title, text: layout[name].title.text.replace(", ", ",<br>"), font: { ...layout[name].title.font, size: 12 } };
    }
    if (layout.yaxis && data[0].orientation === "h") {
      data.forEach((trace) => { trace.y = trace.y.map((words) => wrap(String(words))); if (trace.textfont) trace.textfont.size = 11; });
      if (layout.yaxis.categoryarray) layout.yaxis.categoryarray = layout.yaxis.categoryarray.map((words) => wrap(words));
      if (data[0].textposition === "outside") { layout.height *= 1.25; layout.xaxis.range[1] *= 1.45; }
    }
    if (layout.xaxis.nticks) layout.xaxis.nticks = Math.min(layout.xaxis.nticks, 8);
    if (data[0].colorbar) data[0].colorbar.thickness = 8;
  }
  const wrap = (words) => words.replace(/(.{9,16}?)\s(?=.{4})/g, "$1<br>");
  // The button pressed above the chart.
  function apply(figure, chart) {
    const options = ddiag.data.switches[chart];
    if (!options) return;
    const option = options[chosen.get(chart) || 0];
    for (const [name, values] of Object.entries(option.data || {})) figure.data.forEach((trace, i) => { trace[name] = values[i % values.length]; });
    for (const [path, value] of Object.entries(option.layout || {})) {
      const [axis, name] = path.split(".");
      figure.layout[axis][name] = value;
    }
  }
  // Culprit chips: what is not wanted fades, in the heat map the wanted rows are framed.
  function highlight(figure, chart) {
    const { ranks, groups } = ddiag.filter || {};
    if (ranks && figure.data[0].type === "heatmap") {
      const rows = figure.data[0].y.map((words, i) => [i, /^ranks? (\d+)(?:–(\d+))?/.exec(words)])
        .filter(([, found]) => found && [...ranks].some((rank) => rank >= Number(found[1]) && rank <= Number(found[2] || found[1])));
      figure.layout.shapes = rows.map(([i]) => ({ type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", y0: i - 0.5, y1: i + 0.5, line: { color: ddiag.colour("critical"), width: 2 } }));
      return;
    }
    figure.data.forEach((trace) => {
      if (!Array.isArray(trace.customdata)) return;
      const wanted = (v) => (typeof v === "number" ? !ranks || ranks.has(v) : !groups || groups.has(v));
      trace.marker.opacity = trace.customdata.map((v) => (wanted(v) ? 1 : 0.22));
    });
  }
  function draw(box) {
    start();
    const figure = figureOf(box);
    if (ddiag.printing) figure.layout.width = PAPER_WIDTH;
    box.style.minHeight = `${figure.layout.height}px`;
    const fresh = !box.dataset.drawn;
    box.dataset.drawn = "1";
    Plotly.react(box, figure.data, figure.layout, { displayModeBar: false, responsive: true, showTips: false, doubleClick: false });
    if (fresh) ddiag.plots.drawn += 1;
  }
  const redraw = () => boxes.filter((box) => box.dataset.drawn && ddiag.seen(box)).forEach(draw);
  ddiag.dim = redraw;
  ddiag.onTheme.push(redraw);

  const near = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => { near.unobserve(entry.target); if (!entry.target.dataset.drawn) draw(entry.target); });
  }, { rootMargin: "600px" });
  // What is near is drawn at once, the rest one by one while the reader reads.
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  function drawNext() {
    const next = boxes.find((box) => !box.dataset.drawn && ddiag.seen(box));
    if (!next) return;
    if (window.Plotly) draw(next); else start();
    idle(drawNext);
  }
  addEventListener("load", () => { boxes.forEach((box) => near.observe(box)); idle(drawNext); });

  addEventListener("beforeprint", () => { ddiag.printing = true; boxes.filter(ddiag.seen).forEach(draw); });
  addEventListener("afterprint", () => { ddiag.printing = false; redraw(); });

  ddiag.$(".switch[data-chart]").forEach((group) => group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    ddiag.$("button", group).forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    chosen.set(group.dataset.chart, Number(button.dataset.option));
    draw(document.querySelector(`[data-figure="fig-${group.dataset.chart}"]`));
    ddiag.say(`${group.getAttribute("aria-label")}: ${button.textContent}`);
  }));
})();
