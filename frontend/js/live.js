// Live parts say how old they are, and that what they show is old once several rounds went without an answer.
const MISSED = 3;
const born = new WeakMap();
let shown = performance.now();

document.addEventListener("visibilitychange", () => {
  // Hidden parts are not asked for: what was missed meanwhile is nobody's silence.
  if (!document.hidden) shown = performance.now();
});

function tick() {
  const now = performance.now();
  for (const part of document.querySelectorAll("[data-live]")) {
    if (!born.has(part)) born.set(part, now);
    const age = Math.round((now - born.get(part)) / 1000);
    const text = part.querySelector("[data-live-age]");
    if (text) text.textContent = age < 2 ? "" : `, ${spoken(age)} ${text.dataset.ago}`;
    const silent = (now - Math.max(born.get(part), shown)) / 1000;
    const stale = silent > MISSED * Number(part.dataset.live) + 2;
    part.toggleAttribute("data-stale", stale);
    const lost = part.querySelector("[data-live-lost]");
    if (lost) lost.hidden = !stale;
  }
}

function spoken(seconds) {
  return seconds < 120 ? `${seconds} s` : `${Math.floor(seconds / 60)} min`;
}

// What somebody has opened in a polled part stays open when the part is replaced.
document.addEventListener("htmx:beforeSwap", () => {
  const open = new Set([...document.querySelectorAll("details[data-keep-open][open]")].map((part) => part.id));
  if (!open.size) return;
  document.addEventListener(
    "htmx:afterSwap",
    () => {
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    },
    { once: true },
  );
});

setInterval(tick, 1000);
tick();
