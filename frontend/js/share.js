// A slider and the number beside it are one value, and the line below tells both shares before they are applied.
// Without scripts the slider stays hidden, and the number does the same.
for (const form of document.querySelectorAll("[data-share]")) {
  form.querySelector("[data-share-slider]").hidden = false;
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("[data-share]");
  if (form) share(form, event.target);
});
// A browser that goes back fills in the number that was there, and not always the slider.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("[data-share]")) share(form, form.querySelector("[data-share-number]"));
});

function share(form, moved) {
  const slider = form.querySelector("[data-share-slider]");
  const number = form.querySelector("[data-share-number]");
  if (moved === slider) number.value = slider.value;
  else slider.value = number.value || 0;
  const [stable, canary, percent] = [form.dataset.share, form.elements.version.value, slider.valueAsNumber];
  form.querySelector("[data-share-told]").textContent = `v${stable}: ${100 - percent} % · v${canary}: ${percent} %`;
}
