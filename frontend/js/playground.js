// The playground: one conversation with up to four models, streamed side by side from the gateway.
import { showCode } from "./playground/code.js";
import { bubble, conversation, makeColumn } from "./playground/column.js";
import { attached, contentOf, imageObstacle, noteImages, takeAttached, watchImages } from "./playground/images.js";
import { refusal, watchModels } from "./playground/models.js";
import { announce, say, setup } from "./playground/setup.js";
import { parameters, watchSettings } from "./playground/settings.js";
import { ask, requestOf } from "./playground/turn.js";

const root = document.getElementById("playground");
const find = (selector) => root.querySelector(selector);
let columns = [];

function isBusy() {
  return columns.some((column) => column.running);
}

/** Buttons and empty states as they should be now. */
function settle() {
  const busy = isBusy();
  if (root.dataset.state === "streaming" && !busy && columns.length > 1) announce(say("answeredAll"));
  find("[data-stop]").hidden = !busy;
  find("[data-send]").hidden = busy;
  root.dataset.state = busy ? "streaming" : "idle";
  find("[data-answers]").dataset.columns = String(columns.length);
  find("[data-none]").hidden = columns.length > 0;
  noteImages();
}

function add(model) {
  const refused = refusal(model, columns);
  if (refused) return refused;
  const column = makeColumn(model);
  columns.push(column);
  find("[data-answers]").append(column.panel);
  column.panel.querySelector("[data-remove]").addEventListener("click", () => remove(column));
  column.panel.querySelector("[data-code]").addEventListener("click", () => {
    const body = requestOf(column);
    if (body) showCode(body);
  });
  settle();
  return "";
}

function remove(column) {
  column.running?.abort();
  columns = columns.filter((other) => other !== column);
  column.panel.remove();
  settle();
  document.getElementById("model").focus();
}

/** What keeps a message from being sent now; "" when nothing does. */
function obstacle() {
  if (!columns.length) return say("none");
  const waiting = columns.find((column) => column.pending);
  return waiting ? say("resultsFirst", { model: waiting.model }) : imageObstacle();
}

function send() {
  const prompt = document.getElementById("prompt");
  const text = prompt.value.trim();
  if ((!text && !attached()) || isBusy()) return;
  const refused = obstacle();
  document.getElementById("prompt-error").textContent = refused;
  const settings = refused ? null : parameters();
  if (!settings) return;
  prompt.value = "";
  const images = takeAttached();
  announce(say("announceSent", { count: columns.length }));
  for (const column of columns) {
    column.messages = [...conversation(column), { role: "user", content: contentOf(text, images) }];
    bubble(column, "user", text, images);
    ask(column, settings, settle);
  }
}

function stop() {
  for (const column of columns) column.running?.abort();
}

function startOver() {
  stop();
  const models = columns.map((column) => column.model);
  columns = [];
  find("[data-answers]").replaceChildren();
  document.getElementById("prompt-error").textContent = "";
  models.forEach(add);
  document.getElementById("prompt").focus();
}

if (root) {
  watchModels(find("[data-add]"), add);
  watchSettings(root);
  watchImages(find("[data-composer]"), () => columns);
  find("[data-clear]").addEventListener("click", startOver);
  find("[data-stop]").addEventListener("click", stop);
  find("[data-composer]").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  document.getElementById("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  if (matchMedia("(max-width: 64rem)").matches) for (const group of root.querySelectorAll("[data-group]")) group.open = false;
  setup.columns.forEach(add);
  settle();
}
