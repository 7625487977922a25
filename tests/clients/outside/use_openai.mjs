// OpenAI's client for Node against the gateway: node use_openai.mjs URL MODULE
import { pathToFileURL } from "node:url";

const [url, module] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(module));
const [ACME, SLOW, TINY, WRONG] = ["gw_k1_secret1", "gw_k3_secret3", "gw_k4_secret4", "gw_k1_wrong"];
const messages = [{ role: "user", content: "hi" }];
const city = {
  type: "object",
  properties: { city: { enum: ["Bern", "Genf"] } },
  required: ["city"],
  additionalProperties: false,
};
const api = (apiKey = ACME, maxRetries = 0) => new OpenAI({ baseURL: url, apiKey, maxRetries });
const ask = (more = {}, key, retries) =>
  api(key, retries).chat.completions.create({ model: "bot", messages, temperature: 0, max_tokens: 20, ...more });
const failure = async (promise) => {
  try {
    await promise;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status ?? null, text: error.message, code: error.code };
  }
  return { kind: null };
};

const whole = await ask();
let streamed = "";
const usages = [];
for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) usages.push(chunk.usage.total_tokens);
}
const tools = [{ type: "function", function: { name: "get_weather", parameters: city, strict: true } }];
const called = await ask({ model: "tiny", tools, tool_choice: "required", max_tokens: 300, parallel_tool_calls: false });
const format = { type: "json_schema", json_schema: { name: "city", schema: city, strict: true } };
const structured = await ask({ response_format: format, max_tokens: 300 });
const embedded = await api().embeddings.create({ model: "tiny", input: ["hello", "the cat sat", "x"] });
const events = [];
let response = "";
for await (const event of await api().responses.create({
  model: "bot", input: "hi", temperature: 0, max_output_tokens: 20, stream: true,
})) {
  events.push(event.type);
  if (event.type === "response.output_text.delta") response += event.delta;
}
await ask({}, SLOW);
console.log(
  JSON.stringify({
    text: whole.choices[0].message.content,
    usage: whole.usage.total_tokens,
    streamed,
    streamed_usage: usages,
    arguments: called.choices[0].message.tool_calls[0].function.arguments,
    structured: structured.choices[0].message.content,
    embedded: embedded.data.map((item) => item.embedding.length),
    response,
    last_event: events.at(-1),
    bad: await failure(ask({ temperature: 3 })),
    unknown: await failure(ask({ model: "nobody" })),
    stranger: await failure(ask({}, WRONG)),
    refused: await failure(ask({}, SLOW)),
    retried: (await ask({}, SLOW, 4)).usage.completion_tokens,
    too_large: await failure(ask({}, TINY, 4)),
  }),
);
