// The timeline: lanes per rank on a canvas; zoom by buttons, keys, Ctrl + wheel and dragging.
"use strict";
(function () {
  const data = ddiag.data.timeline;
  if (!data) return;
  const canvas = document.getElementById("timeline-canvas");
  const tip = document.getElementById("timeline-tip");
  const AXIS = 26, LANE = 15, GAP = 3, BETWEEN = 9, SMALLEST = data.length / 20000;
  let from = 0, to = data.length, layout = [], width = 0, height = 0, gutter = 0, room = 0;
  const pen = canvas.getContext("2d");
  const paint = {};

  const label = (rank) => (width < 560 ? rank.label.split(" · ")[0] : rank.label);
  const family = () => getComputedStyle(document.body).fontFamily;

  function hatch() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 12;
    const brush = tile.getContext("2d");
    brush.fillStyle = ddiag.colour("wait-ground");
    brush.fillRect(0, 0, 12, 12);
    brush.strokeStyle = ddiag.colour("wait");
    brush.lineWidth = 3.4;
    for (const x of [-12, 0, 12]) { brush.beginPath(); brush.moveTo(x - 2, 14); brush.lineTo(x + 14, -2); brush.stroke(); }
    const pattern = pen.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(0.5));
    return pattern;
  }
  function colours() {
    for (const name of ["compute", "transfer", "copy", "input", "sync", "overlap", "wait", "ink", "muted", "line", "ground", "critical", "sunk"]) paint[name] = ddiag.colour(name);
    paint.hatch = hatch();
  }
  function wantedRanks() {
    const ranks = ddiag.filter && ddiag.filter.ranks;
    const shown = ranks ? data.ranks.filter((rank) => ranks.has(rank.rank)) : data.ranks;
    return shown.length ? shown : data.ranks;
  }
  function place() {
    width = ddiag.printing ? 660 : canvas.parentElement.clientWidth;
    const words = 54;
    pen.font = `600 12.5px ${family()}`;
    const longest = Math.max(...data.ranks.map((rank) => pen.measureText(label(rank)).width));
    gutter = Math.ceil(Math.min(longest, width < 560 ? 64 : 190)) + words + 14;
    room = gutter - words - 10;
    layout = [];
    let y = AXIS;
    for (const rank of wantedRanks()) {
      const top = y;
      const lanes = rank.lanes.map((lane) => { const at = y; y += LANE + GAP; return { lane, y: at }; });
      layout.push({ rank, top: top - GAP, bottom: y, lanes });
      y += BETWEEN;
    }
    height = y;
    const ratio = Math.min(window.devicePixelRatio || 1, 2) * (ddiag.printing ? 2 : 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    canvas.style.width = ddiag.printing ? `${width}px` : "";
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  const x = (t) => gutter + ((t - from) / (to - from)) * (width - gutter);
  const time = (px) => from + ((px - gutter) / (width - gutter)) * (to - from);
  // First span that ends after t.
  function firstAfter(ends, t) {
    let low = 0, high = ends.length;
    while (low < high) { const middle = (low + high) >> 1; if (ends[middle] <= t) low = middle + 1; else high = middle; }
    return low;
  }
  function spans(lane, draw) {
    for (let i = firstAfter(lane.e, from); i < lane.s.length && lane.s[i] < to; i++) draw(i);
  }
  function block(fill, a, b, y, inset) {
    const left = Math.max(x(a), gutter), right = Math.min(x(b), width);
    if (right < left) return;
    pen.fillStyle = fill;
    pen.fillRect(left, y + (inset || 0), Math.max(right - left, 0.6), LANE - 2 * (inset || 0));
  }
  function communication(lane, compute, y) {
    spans(lane, (i) => {
      const split = lane.s[i] + (lane.w ? lane.w[i] : 0);
      block(paint.transfer, split, lane.e[i], y);
      if (compute) spans(compute, (k) => {
        const a = Math.max(split, compute.s[k]), b = Math.min(lane.e[i], compute.e[k]);
        if (b > a) block(paint.overlap, a, b, y);
      });
      if (split > lane.s[i]) {
        const left = Math.max(x(lane.s[i]), gutter), right = Math.min(x(split), width);
        block(right - left > 4 ? paint.hatch : paint.wait, lane.s[i], split, y);
        if (right - left > 4) { pen.strokeStyle = paint.wait; pen.lineWidth = 1; pen.strokeRect(left + 0.5, y + 0.5, right - left - 1, LANE - 1); }
      }
    });
  }
  function step() {
    const rough = (to - from) / Math.max(3, (width - gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
  }
  function axis() {
    const each = step(), decimals = Math.max(0, -Math.floor(Math.log10(each / 1000)));
    pen.font = `12px ${family()}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let t = Math.ceil(from / each) * each; t <= to; t += each) {
      const at = Math.round(x(t)) + 0.5;
      pen.strokeStyle = paint.line;
      pen.beginPath(); pen.moveTo(at, AXIS - 6); pen.lineTo(at, height); pen.stroke();
      const words = (t / 1000).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) + " ms";
      pen.fillStyle = paint.muted;
      const half = pen.measureText(words).width / 2;
      pen.fillText(words, Math.min(Math.max(at, gutter + half), width - half), 9);
    }
  }
  function labels(row) {
    pen.textAlign = "left";
    pen.fillStyle = paint.ink;
    pen.font = `${row.rank.culprit ? "600 " : ""}12.5px ${family()}`;
    let words = label(row.rank);
    while (words.length > 4 && pen.measureText(words).width > room) words = words.slice(0, -2) + "…";
    pen.fillText(words, 4, row.top + GAP + LANE / 2 + 0.5);
    pen.font = `11px ${family()}`;
    pen.fillStyle = paint.muted;
    pen.textAlign = "right";
    for (const { lane, y } of row.lanes) pen.fillText(lane.word, gutter - 8, y + LANE / 2 + 0.5);
  }
  function drawNow() {
    colours();
    place();
    pen.clearRect(0, 0, width, height);
    axis();
    for (const row of layout) {
      const compute = row.rank.lanes.find((lane) => lane.kind === "compute");
      for (const { lane, y } of row.lanes) {
        pen.fillStyle = paint.sunk;
        pen.fillRect(gutter, y, width - gutter, LANE);
        if (lane.kind === "transfer") communication(lane, compute, y);
        else spans(lane, (i) => block(paint[lane.kind], lane.s[i], lane.e[i], y));
      }
      labels(row);
      if (row.rank.culprit) {
        pen.strokeStyle = paint.critical;
        pen.lineWidth = 1.5;
        pen.strokeRect(1, row.top - 1, width - 2, row.bottom - row.top + 1);
      }
    }
  }
  let waiting = false;
  function draw() {
    if (!canvas.parentElement.clientWidth || waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawNow(); });
  }
  ddiag.drawTimeline = draw;

  function zoom(factor, about) {
    const length = Math.min(Math.max((to - from) * factor, SMALLEST), data.length);
    const share = (about - from) / (to - from);
    move(about - share * length, length);
  }
  function move(start, length) {
    from = Math.min(Math.max(start, 0), data.length - length);
    to = from + length;
    tip.hidden = true;
    draw();
  }
  const actions = {
    in: () => zoom(0.5, (from + to) / 2), out: () => zoom(2, (from + to) / 2), all: () => move(0, data.length),
    left: () => move(from - (to - from) / 4, to - from), right: () => move(from + (to - from) / 4, to - from),
  };
  document.getElementById("timeline-zoom").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) actions[button.dataset.zoom]();
  });
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Home: "all" };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // plain wheel scrolls the page
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, time(event.offsetX)));

  let grip = null;
  canvas.addEventListener("pointerdown", (event) => { grip = { at: event.clientX, from }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { grip = null; });
  canvas.addEventListener("pointercancel", () => { grip = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointermove", (event) => {
    if (grip && event.buttons) move(grip.from - ((event.clientX - grip.at) / (width - gutter)) * (to - from), to - from);
    else hover(event.offsetX, event.offsetY);
  });
  function hover(px, py) {
    const row = layout.find((r) => py >= r.top && py < r.bottom);
    const found = row && row.lanes.find(({ y }) => py >= y && py < y + LANE);
    if (!found || px < gutter) { tip.hidden = true; return; }
    const { lane } = found, t = time(px), slack = (to - from) / (width - gutter);
    const i = firstAfter(lane.e, t - slack);
    if (i >= lane.s.length || lane.s[i] > t + slack) { tip.hidden = true; return; }
    const ms = (us) => (us / 1000).toLocaleString("en-US", { maximumSignificantDigits: 4 });
    const many = lane.c && lane.c[i] > 1;
    tip.textContent = `${row.rank.label}: ${many ? `${lane.c[i].toLocaleString("en-US")} spans, longest ` : ""}${data.names[lane.n[i]]}, ${ms(lane.e[i] - lane.s[i])} ms from ${ms(lane.s[i])} ms` +
      (lane.w && lane.w[i] ? `; waiting ${ms(lane.w[i])} ms, transfer ${ms(lane.e[i] - lane.s[i] - lane.w[i])} ms` : "");
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(px + 12, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${found.y + LANE + 6}px`;
  }
  new ResizeObserver(draw).observe(canvas.parentElement);
  ddiag.onTheme.push(draw);
  addEventListener("beforeprint", () => { ddiag.printing = true; drawNow(); });
  addEventListener("afterprint", () => { ddiag.printing = false; draw(); });
  draw();
})();
