// Culprit chips: one press shows only that rank, host or group in every chart and table; a second press shows all again.
"use strict";
(function () {
  const bar = document.getElementById("filter-bar");
  let pressed = null;
  function ranksOf(chip) {
    if (chip.dataset.kind === "rank") return new Set([Number(chip.dataset.value)]);
    return chip.dataset.kind === "host" ? new Set(ddiag.data.hosts[chip.dataset.value] || []) : null;
  }
  function show(chip) {
    const same = chip && pressed && chip.dataset.kind === pressed.dataset.kind && chip.dataset.value === pressed.dataset.value;
    pressed = same ? null : chip;
    ddiag.filter = pressed ? { ranks: ranksOf(pressed), groups: pressed.dataset.kind === "group" ? new Set([pressed.dataset.value]) : null } : {};
    ddiag.$(".chip[data-kind]").forEach((other) => {
      const on = pressed && other.dataset.kind === pressed.dataset.kind && other.dataset.value === pressed.dataset.value;
      other.setAttribute("aria-pressed", String(Boolean(on)));
    });
    bar.hidden = !pressed;
    document.getElementById("filter-words").textContent = pressed ? `Charts and tables show ${pressed.textContent} only.` : "";
    const { ranks, groups } = ddiag.filter;
    ddiag.$("table.data").forEach((table) => {
      ddiag.$("tbody tr", table).forEach((row) => {
        const rank = row.dataset.rank, group = row.dataset.group;
        const out = (ranks && rank !== undefined && !ranks.has(Number(rank))) || (groups && group !== undefined && !groups.has(group));
        row.dataset.chip = out ? "0" : "1";
      });
      ddiag.showRows(table);
    });
    ddiag.dim();
    if (ddiag.drawTimeline) ddiag.drawTimeline();
  }
  document.addEventListener("click", (event) => {
    const chip = event.target.closest(".chip[data-kind]");
    if (chip) show(chip);
    if (event.target.id === "filter-clear") { const last = pressed; show(null); if (last) last.focus(); }
  });
})();
