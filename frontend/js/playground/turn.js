// One turn of one column: its conversation so far is sent, the answer streams in, and what it took is told.
import { emptyResult, stream } from "../chat.js";
import { askForResults, callsMessage, showCalls } from "./calls.js";
import { bubble, following, showMetrics } from "./column.js";
import { showError } from "./errors.js";
import { imagesOf } from "./images.js";
import { apiKey } from "./key.js";
import { costOf } from "./prices.js";
import { announce, make, say, setup } from "./setup.js";
import { parameters, systemMessages } from "./settings.js";
import { thoughtOf } from "./thought.js";

/** The body of the column's next request. Null where a setting is wrong. */
export function requestOf(column, settings = parameters()) {
  return settings && { model: column.model, messages: [...systemMessages(), ...column.messages], ...settings };
}

/** Draws at most once a frame, however fast tokens come. */
function frames(draw) {
  let asked = 0;
  return {
    soon: () => (asked ||= requestAnimationFrame(() => ((asked = 0), draw()))),
    now: () => (cancelAnimationFrame(asked), (asked = 0), draw()),
  };
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** What is said of an answer beside its figures. */
async function notesOf(column, result, body, note, hasFailed) {
  const notes = note ? [{ text: note }] : [];
  if (result.finish === "length") notes.push({ text: say("length"), tone: "warn" });
  if (body.response_format && result.finish && !result.calls.length) {
    const right = isJson(result.text);
    notes.push({ text: say(right ? "json" : "notJson"), tone: right ? "ok" : "warn" });
  }
  if (result.usage) {
    const { text, title, isUnpriced } = await costOf(result.served || column.model, result.usage, hasFailed);
    notes.unshift({ text, title, tone: isUnpriced ? "warn" : undefined });
  }
  if (result.served && result.served !== column.model) notes.push({ text: say("served", { model: result.served }) });
  return notes;
}

/** Puts what was answered into the conversation; the calls that wait for their results. */
function keep(column, result, isWhole) {
  // Cut at the limit, the last call's arguments are no JSON, and no backend takes them back.
  const calls = isWhole && result.finish !== "length" ? result.calls.filter(Boolean) : [];
  if (calls.length) column.messages.push(callsMessage(result, calls));
  else if (result.text) column.messages.push({ role: "assistant", content: result.text });
  else column.failed = true;
  return calls;
}

/** Streams the column's next answer; never throws. `changed` is told when it begins and ends. */
export async function ask(column, settings, changed) {
  const body = requestOf(column, settings);
  const again = (...messages) => {
    const current = parameters();
    if (!current) return false;
    column.messages.push(...messages);
    ask(column, current, changed);
    return true;
  };
  const control = new AbortController();
  const { signal } = control;
  Object.assign(column, { running: control, failed: false, pending: null });
  changed();
  const item = bubble(column, "assistant", "");
  item.classList.add("bubble-live");
  const [text, calls] = [make("div"), make("div", { className: "grid gap-2" })];
  const result = { ...emptyResult(), images: imagesOf(body.messages).length };
  const thought = thoughtOf(result);
  item.append(thought.holder, text, calls);
  const draw = frames(() =>
    following(column, () => {
      thought.show();
      text.textContent = result.text;
      showCalls(calls, result.calls);
      showMetrics(column, result, [{ text: say("waiting") }]);
    }),
  );
  draw.now();
  let [failure, note] = [null, ""];
  try {
    const key = await apiKey(document.getElementById("playground").dataset.csrf);
    await stream({ url: `${setup.gateway}/chat/completions`, key, body, signal, result }, draw.soon);
  } catch (error) {
    if (signal.aborted) note = say("stopped");
    else failure = error;
  }
  draw.now();
  item.classList.remove("bubble-live");
  const asked = keep(column, result, !failure && !note);
  if (!result.text && !result.thought && !result.calls.length) item.remove();
  column.running = null;
  if (failure) showError(column, failure, again);
  if (asked.length) {
    column.pending = asked;
    askForResults(column, calls, asked, again);
  }
  announce(say(failure ? "announceError" : asked.length ? "announceCalls" : "announceDone", { model: column.model }));
  showMetrics(column, result, note ? [{ text: note }] : []);
  changed();
  const notes = await notesOf(column, result, body, note, Boolean(failure));
  if (!column.running) showMetrics(column, result, notes);
}
