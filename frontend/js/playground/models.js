// The field that adds a model: it offers names as one types, and takes any that is written out.
import { say, setup } from "./setup.js";

const PAUSE_MS = 200;
const input = document.getElementById("model");
const list = document.getElementById("models");
let timer = 0;
let latest = 0;

async function offer() {
  const turn = ++latest;
  const query = new URLSearchParams({ search: input.value.trim() });
  const response = await fetch(`${setup.urls.models}?${query}`).catch(() => null);
  if (!response?.ok || response.redirected) return; // nothing is offered; what is written out is taken all the same
  const { models } = await response.json();
  if (turn !== latest) return; // an earlier question's answer came later
  list.replaceChildren(...models.map((name) => new Option(name, name)));
}

/** Calls `add` with each name that is entered; what it returns is why it was not added, else "". */
export function watchModels(form, add) {
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(offer, PAUSE_MS);
  });
  input.addEventListener("focus", offer, { once: true });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = input.value.trim();
    const refused = name ? add(name) : "";
    document.getElementById("model-error").textContent = refused;
    input.setAttribute("aria-invalid", String(Boolean(refused)));
    if (!refused) input.value = "";
  });
}

/** Why `name` cannot stand beside `columns`; "" when it can. */
export function refusal(name, columns) {
  if (columns.length >= setup.most) return say("most");
  return columns.some((column) => column.model === name) ? say("twice", { model: name }) : "";
}
