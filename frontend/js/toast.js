// Toasts: short confirmations in a live region; errors stay until dismissed.
const SECONDS = 6;
const region = document.getElementById("toasts");

/** The region's translated text for `name` (see templates/base.html). */
export const toastText = (name) => region.dataset[name];

/** Shows `text`; `tone` is success, info, warning or error. */
export function toast(tone, text) {
  const icons = { success: "circle-check", error: "circle-alert" };
  const item = document.getElementById("toast-template").content.firstElementChild.cloneNode(true);
  item.className = `toast toast-${tone}`;
  const use = item.querySelector(".icon use");
  use.setAttribute("href", use.getAttribute("href").replace(/#.*/, `#${icons[tone] ?? "info"}`));
  item.querySelector("span").textContent = text;
  region.append(item);
  expire(item);
}

function expire(item) {
  if (!item.classList.contains("toast-error")) setTimeout(() => item.remove(), SECONDS * 1000);
}

region.querySelectorAll(".toast").forEach(expire);
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-dismiss]")) event.target.closest(".toast")?.remove();
});
