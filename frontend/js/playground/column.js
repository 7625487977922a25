// One model's column: its conversation, and what is seen of it.
import { fromTemplate, make, say, setup } from "./setup.js";

const NEAR_END = 60;

/** A column of `model` with an empty conversation. `pending` are calls whose results are awaited. */
export function makeColumn(model) {
  const panel = fromTemplate("answer-template");
  const part = (attribute) => panel.querySelector(attribute);
  const name = part("[data-title]");
  name.textContent = name.title = model;
  panel.dataset.model = model;
  part("[data-badge]").hidden = !setup.bases.includes(model);
  part("[data-log]").setAttribute("aria-label", model);
  for (const [attribute, text] of [["[data-code]", "viewCode"], ["[data-remove]", "remove"]]) {
    const label = say(text, { model });
    part(attribute).setAttribute("aria-label", label);
    part(attribute).title = label;
  }
  return { model, panel, log: part("[data-log]"), metrics: part("[data-metrics]"), messages: [], pending: null, failed: false, running: null };
}

/** Runs `change` and stays at the end of the log, where one was. */
export function following({ log }, change) {
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
  change();
  if (follows) log.scrollTop = log.scrollHeight;
}

/** The conversation that the next message continues: a message without an answer is no part of it. */
export const conversation = ({ failed, messages }) => (failed && messages.at(-1)?.role === "user" ? messages.slice(0, -1) : messages);

/** Adds a message to the log; `images` are data URLs. */
export function bubble(column, role, text, images = []) {
  const item = make("div", { className: `bubble bubble-${role}`, textContent: text });
  item.dataset.role = role;
  item.append(...images.map((src) => make("img", { src, alt: say("oneImage"), className: "bubble-image" })));
  column.log.append(item);
  column.log.scrollTop = column.log.scrollHeight;
  return item;
}

/** What an answer took, one short text each; `notes` are `{text, title, tone}`. */
export function showMetrics(column, result, notes = []) {
  const texts = [];
  if (result.ttft !== null) texts.push({ text: `TTFT ${Math.round(result.ttft)} ms` });
  if (result.usage) {
    const { prompt_tokens: input, completion_tokens: output } = result.usage;
    const cached = result.usage.prompt_tokens_details?.cached_tokens ?? 0;
    texts.push({ text: say(cached ? "tokensCached" : "tokens", { in: input, cached, out: output }) });
    if (result.images) texts.push({ text: say(result.images === 1 ? "oneImage" : "images", { count: result.images }) });
    const seconds = (result.last - result.first) / 1000;
    if (output > 1 && seconds > 0) texts.push({ text: `${((output - 1) / seconds).toFixed(1)} tok/s` });
  }
  column.metrics.replaceChildren(
    ...[...texts, ...notes].map(({ text, title = "", tone }) => make("span", { textContent: text, title, className: tone ? `badge badge-${tone}` : "" })),
  );
}
