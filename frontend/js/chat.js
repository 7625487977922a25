// One chat completion, streamed. A key issued a moment ago may take up to a second to reach the gateway.
const KEY_DELAYS_MS = [250, 500, 1000, 1500];

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function post({ url, key, body, signal, result }) {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const text = JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } });
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
  try {
    return new Error(JSON.parse(text).error.message);
  } catch {
    return new Error(`HTTP ${response.status}: ${text.slice(0, 300)}`);
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

/**
 * Streams into `call.result` (text, usage, finish; ttft in ms; first, last: times of tokens) and calls
 * `changed` after each event. Throws an Error whose message is the gateway's own; `broken` marks a
 * stream that ended without its end; an empty message means that the gateway was not reached.
 */
export async function stream(call, changed) {
  const { result } = call;
  const response = await post(call);
  if (!response.ok) throw await refusal(response);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    if (choice?.delta?.content) {
      result.last = performance.now();
      if (result.ttft === null) [result.ttft, result.first] = [result.last - result.started, result.last];
      result.text += choice.delta.content;
    }
    result.finish = choice?.finish_reason ?? result.finish;
    result.usage = event.usage ?? result.usage;
    changed();
  }
}
