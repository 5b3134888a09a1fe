// Shared by all scripts of the report: data, theme, folding, copying, contents.
"use strict";
const ddiag = {
  data: JSON.parse(document.getElementById("page-data").textContent),
  $: (selector, root) => Array.from((root || document).querySelectorAll(selector)),
  dark: matchMedia("(prefers-color-scheme: dark)"),
  printing: false,
  onTheme: [],
  say(words) { document.getElementById("announce").textContent = words; },
  // Inside a closed <details> an element may have a box and still not be seen.
  seen(element) { return element.checkVisibility ? element.checkVisibility() : element.getClientRects().length > 0; },
  isDark() { return ddiag.dark.matches && !ddiag.printing; },
  colour(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); },
};
ddiag.dark.addEventListener("change", () => ddiag.onTheme.forEach((redraw) => redraw()));

// Without scripts the data of each chart lies open; with them the chart stands for it.
ddiag.$("details.data-of").forEach((details) => { details.open = false; });

function reveal() {
  let target = null;
  try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch (error) { if (!(error instanceof URIError)) throw error; }
  if (!target) return;
  for (let box = target.parentElement; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
if (location.hash) addEventListener("load", reveal);

function copied(button, done) {
  button.textContent = done ? "Copied" : "Select and copy";
  ddiag.say(button.textContent);
  setTimeout(() => { button.textContent = "Copy"; }, 1600);
}
function copyByHand(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const text = button.dataset.copy;
  if (!navigator.clipboard) { copied(button, copyByHand(text)); return; }
  navigator.clipboard.writeText(text).then(() => copied(button, true), () => copied(button, copyByHand(text)));
});

// The contents list marks the section being read.
(function () {
  const links = new Map(ddiag.$(".contents a").map((a) => [a.hash.slice(1), a]));
  const marks = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  function mark() {
    const shown = marks.filter(ddiag.seen);
    const above = shown.filter((m) => m.getBoundingClientRect().top < 140);
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 4 && scrollY > 0;
    const now = atEnd ? shown[shown.length - 1] : above[above.length - 1] || shown[0];
    links.forEach((a, id) => { if (now && id === now.id) a.setAttribute("aria-current", "location"); else a.removeAttribute("aria-current"); });
  }
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(); });
  }, { passive: true });
  mark();
})();
