// Tables: heads become sort buttons; long tables get a labelled filter.
"use strict";
(function () {
  const LONG = 10;
  const key = (cell) => {
    const text = cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent;
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  };
  function compare(a, b, sign) {
    if (a === "" || b === "") return (a === "") - (b === ""); // unknown last, whichever way
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  }
  function sortBy(table, th, index) {
    const numeric = th.classList.contains("n");
    const now = th.getAttribute("aria-sort");
    const order = now === "descending" ? "ascending" : now === "ascending" ? "descending" : numeric ? "descending" : "ascending";
    ddiag.$("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
    th.setAttribute("aria-sort", order);
    const rows = ddiag.$("tbody tr", table).map((row) => [key(row.cells[index]), row]);
    rows.sort((a, b) => compare(a[0], b[0], order === "ascending" ? 1 : -1));
    table.tBodies[0].append(...rows.map((pair) => pair[1]));
    ddiag.say(`Sorted by ${th.textContent.trim()}, ${order}`);
  }
  function addFilter(table) {
    const caption = table.caption.firstChild.textContent.trim();
    const box = document.createElement("div");
    box.className = "table-filter";
    const label = document.createElement("label");
    label.textContent = "Filter ";
    label.htmlFor = `${table.id}-filter`;
    const input = document.createElement("input");
    input.type = "search";
    input.id = label.htmlFor;
    input.setAttribute("aria-label", `Filter ${caption}`);
    const count = document.createElement("span");
    box.append(label, input, count);
    table.setAttribute("aria-label", caption);
    table.caption.append(box);
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      ddiag.$("tbody tr", table).forEach((row) => { row.dataset.text = !wanted || row.textContent.toLowerCase().includes(wanted) ? "1" : "0"; });
      ddiag.showRows(table);
      const shown = ddiag.$("tbody tr:not(.out)", table).length;
      count.textContent = wanted ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
      ddiag.say(count.textContent);
    });
  }
  // A row shows when the text filter and the culprit chips both want it.
  ddiag.showRows = (table) => ddiag.$("tbody tr", table).forEach((row) => {
    row.classList.toggle("out", row.dataset.text === "0" || row.dataset.chip === "0");
  });
  ddiag.$("table.data").forEach((table) => {
    const rows = table.tBodies[0].rows.length;
    if (rows > 1) {
      ddiag.$("thead th", table).forEach((th, index) => {
        const head = th.querySelector(".head");
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = head.textContent;
        head.replaceWith(button);
        button.addEventListener("click", () => sortBy(table, th, index));
      });
    }
    if (rows > LONG) addFilter(table);
  });
})();
