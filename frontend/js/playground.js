// The playground: one question to an adapter and to its base, streamed side by side from the gateway.
import { stream } from "./chat.js";

const root = document.getElementById("playground");
const find = (selector) => root.querySelector(selector);
const value = (id) => document.getElementById(id).value;
const model = document.getElementById("model");
const compare = document.getElementById("compare");
const answers = find("[data-answers]");
/** Each column: its model, its conversation so far, its elements. */
let columns = [];
let running = null;
let issued = null;

/** A key with at least half a minute left; kept in this page's memory alone. */
async function apiKey() {
  if (issued && issued.expires_at - Date.now() / 1000 > 30) return issued.key;
  const headers = { "X-CSRFToken": root.dataset.csrf };
  const response = await fetch(root.dataset.keyUrl, { method: "POST", headers, redirect: "error" });
  if (!response.ok) throw new Error(root.dataset.noKey);
  issued = await response.json();
  return issued.key;
}

function buildColumns() {
  const base = model.selectedOptions[0].dataset.base;
  compare.closest("label").hidden = !base;
  const names = [{ name: model.value, isBase: !base }];
  if (base && compare.checked) names.push({ name: base, isBase: true });
  columns = names.map(({ name, isBase }) => {
    const panel = document.getElementById("answer-template").content.firstElementChild.cloneNode(true);
    panel.dataset.model = name;
    panel.querySelector("[data-title]").textContent = name;
    panel.querySelector("[data-badge]").hidden = !isBase;
    panel.querySelector("[data-log]").setAttribute("aria-label", name);
    const part = (attribute) => panel.querySelector(attribute);
    return { name, panel, log: part("[data-log]"), metrics: part("[data-metrics]"), messages: [] };
  });
  answers.dataset.columns = String(columns.length);
  answers.replaceChildren(...columns.map((column) => column.panel));
}

function bubble(column, role, text) {
  const item = document.createElement("div");
  item.className = `bubble bubble-${role}`;
  item.dataset.role = role;
  item.textContent = text;
  column.log.append(item);
  column.log.scrollTop = column.log.scrollHeight;
  return item;
}

function showError(column, text) {
  const notice = document.getElementById("answer-error").content.firstElementChild.cloneNode(true);
  notice.querySelector("div").textContent = text;
  notice.dataset.testid = "answer-error";
  column.log.append(notice);
  column.log.scrollTop = column.log.scrollHeight;
}

function showMetrics(column, result, note) {
  const texts = [];
  if (result.ttft !== null) texts.push(`TTFT ${Math.round(result.ttft)} ms`);
  if (result.usage) {
    const { prompt_tokens: input, completion_tokens: output } = result.usage;
    texts.push(root.dataset.tokens.replace("{in}", input).replace("{out}", output));
    const seconds = (result.last - result.first) / 1000;
    if (output > 1 && seconds > 0) texts.push(`${((output - 1) / seconds).toFixed(1)} tok/s`);
  }
  if (note) texts.push(note);
  column.metrics.replaceChildren(
    ...texts.map((text) => Object.assign(document.createElement("span"), { textContent: text })),
  );
  column.panel.dataset.state = note === root.dataset.waiting ? "streaming" : "done";
}

async function ask(column, prompt, key, signal) {
  const system = value("system").trim();
  const asked = { role: "user", content: prompt };
  bubble(column, "user", prompt);
  const item = bubble(column, "assistant", "");
  item.classList.add("bubble-live");
  const result = { text: "", usage: null, ttft: null, first: 0, last: 0, finish: null };
  showMetrics(column, result, root.dataset.waiting);
  const body = {
    model: column.name,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...column.messages, asked],
    max_tokens: Number(value("max_tokens")) || 256,
    temperature: Number(value("temperature")),
    top_p: Number(value("top_p")),
  };
  const atEnd = () => column.log.scrollHeight - column.log.scrollTop - column.log.clientHeight < 60;
  let note = "";
  try {
    await stream({ url: `${root.dataset.gateway}/chat/completions`, key, body, signal, result }, () => {
      const follow = atEnd();
      item.textContent = result.text;
      showMetrics(column, result, root.dataset.waiting);
      if (follow) column.log.scrollTop = column.log.scrollHeight;
    });
    if (result.finish === "length") note = root.dataset.length;
  } catch (error) {
    if (signal.aborted) note = root.dataset.stopped;
    else showError(column, error.broken ? root.dataset.broken : error.message || root.dataset.unreachable);
  }
  item.classList.remove("bubble-live");
  if (result.text) column.messages.push(asked, { role: "assistant", content: result.text });
  else item.remove();
  showMetrics(column, result, note);
}

async function send() {
  const prompt = value("prompt").trim();
  if (!prompt || running) return;
  running = new AbortController();
  toggle(true);
  document.getElementById("prompt").value = "";
  const { signal } = running;
  try {
    const key = await apiKey();
    await Promise.all(columns.map((column) => ask(column, prompt, key, signal)));
  } catch (error) {
    columns.forEach((column) => showError(column, error.message === root.dataset.noKey ? error.message : root.dataset.noKey));
    document.getElementById("prompt").value = prompt;
  }
  running = null;
  toggle(false);
}

function toggle(busy) {
  find("[data-stop]").hidden = !busy;
  find("[data-send]").hidden = busy;
  root.dataset.state = busy ? "streaming" : "idle";
}

function startOver() {
  running?.abort();
  buildColumns();
}

if (root) {
  model.addEventListener("change", startOver);
  compare.addEventListener("change", startOver);
  find("[data-clear]").addEventListener("click", startOver);
  find("[data-stop]").addEventListener("click", () => running?.abort());
  find("[data-composer]").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  document.getElementById("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  for (const range of root.querySelectorAll("input[type=range]")) {
    range.addEventListener("input", () => (find(`output[for="${range.id}"]`).value = range.value));
  }
  if (matchMedia("(max-width: 64rem)").matches) find("[data-settings]").open = false;
  buildColumns();
  toggle(false);
}
