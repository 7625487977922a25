// One chat completion, streamed. A key issued a moment ago may take up to a second to reach the gateway.
const KEY_DELAYS_MS = [250, 500, 1000, 1500];

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** What is known of an answer before it begins. */
export const emptyResult = () => ({ text: "", thought: "", calls: [], usage: null, ttft: null, first: 0, last: 0, finish: null, served: "" });

async function post({ url, key, body, signal, result }) {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  // With each event the usage so far: also an answer that is stopped has its tokens counted.
  const options = { include_usage: true, continuous_usage_stats: true };
  const text = JSON.stringify({ ...body, stream: true, stream_options: options });
  for (const delay of [...KEY_DELAYS_MS, null]) {
    let response;
    result.started = performance.now(); // anew for each attempt: waiting for the key is no TTFT
    try {
      response = await fetch(url, { method: "POST", headers, body: text, signal, credentials: "omit" });
    } catch (error) {
      throw signal.aborted ? error : new Error(""); // the caller knows what to say of an unreachable gateway
    }
    if (response.status !== 401 || delay === null) return response;
    await pause(delay);
  }
}

async function refusal(response) {
  const text = await response.text();
  const after = Number(response.headers.get("retry-after"));
  const told = { status: response.status, after: after > 0 ? after : null, never: response.headers.get("x-should-retry") === "false" };
  try {
    const { message, code, param } = JSON.parse(text).error;
    return Object.assign(new Error(message), told, { code, param });
  } catch {
    return Object.assign(new Error(`HTTP ${response.status}: ${text.slice(0, 300)}`), told);
  }
}

/** The JSON of each server-sent event; ends after `[DONE]`. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw Object.assign(error, { broken: true });
    }
    if (part.done) throw Object.assign(new Error(""), { broken: true });
    const lines = (rest + part.value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** Adds a piece of a tool call: its name comes once, its arguments in parts. */
function takeCall(calls, { index = 0, id, function: { name = "", arguments: text = "" } = {} }) {
  calls[index] ??= { id: "", name: "", arguments: "" };
  calls[index].id ||= id ?? "";
  calls[index].name += name ?? "";
  calls[index].arguments += text ?? "";
}

/**
 * Streams into `call.result` (an `emptyResult`; ttft in ms; first, last: times of tokens) and calls `changed`
 * after each event. Throws an Error whose message is the gateway's own, with its status, code and param, and
 * `after`, the seconds to wait; `broken` marks a stream that ended without its end; an empty message means
 * that the gateway was not reached.
 */
export async function stream(call, changed) {
  const { result } = call;
  const response = await post(call);
  if (!response.ok) throw await refusal(response);
  result.served = response.headers.get("x-graftwork-served-model") ?? "";
  for await (const event of events(response)) {
    if (event.error) throw Object.assign(new Error(event.error.message), { code: event.error.code, param: event.error.param });
    const { delta, finish_reason: finish } = event.choices?.[0] ?? {};
    const thought = delta?.reasoning_content || delta?.reasoning || "";
    if (thought || delta?.content || delta?.tool_calls?.length) {
      result.last = performance.now();
      if (result.ttft === null) [result.ttft, result.first] = [result.last - result.started, result.last];
      result.thought += thought;
      result.text += delta.content ?? "";
      for (const part of delta.tool_calls ?? []) takeCall(result.calls, part);
    }
    result.finish = finish ?? result.finish;
    result.usage = event.usage ?? result.usage;
    changed();
  }
}
