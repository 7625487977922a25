// What every page has: htmx, theme, menus, dialogs, tabs, copying, sliders, toasts, uploads, polling that rests.
import htmx from "htmx.org";
import "./controls.js";
import "./live.js";
import "./palette.js";
import "./share.js";
import "./sort.js";
import "./upload.js";
import { toast, toastText } from "./toast.js";

window.htmx = htmx;

/** Polled parts rest while nobody looks, and are asked for at once on return. */
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.target.hasAttribute("data-poll")) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  for (const part of document.querySelectorAll("[data-poll]")) {
    htmx.ajax("GET", part.getAttribute("hx-get"), { source: part, target: part, swap: "outerHTML" });
  }
});

// A poll that fails says so once; the next tick tries again by itself.
let lost = false;
document.addEventListener("htmx:sendError", () => {
  if (!lost) toast("error", toastText("lost"));
  lost = true;
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.xhr?.status) lost = false;
});
document.addEventListener("htmx:responseError", () => toast("error", toastText("failed")));
