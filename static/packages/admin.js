// What the staff admin's markup leaves out for screen readers: which part of a page is its content, and what scrolls.
document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("main")?.setAttribute("role", "main");
  for (const area of document.querySelectorAll("[data-simplebar]"))
    area.dataset.simplebarAriaLabel = area.closest("#nav-sidebar-apps") ? "Navigation" : "Table";
});
