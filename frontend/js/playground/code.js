// The same request for a terminal and for Python: with the gateway's address, never with a key.
import { setup } from "./setup.js";

const KEY = "GRAFTWORK_API_KEY";
const IMAGE_CHARACTERS = 48;
const NOT_OPENAIS = ["top_k", "repetition_penalty", "thinking_token_budget"];

/** Inside single quotes of a shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(body) {
  return [
    `curl -N ${setup.gateway}/chat/completions \\`,
    `  -H "Authorization: Bearer $${KEY}" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d ${quoted(JSON.stringify({ ...body, stream: true }, null, 2))}`,
  ].join("\n");
}

/** A JSON value as Python writes it; strings of JSON are strings of Python. */
function python(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((item) => python(item, inner))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.map((part) => inner + part).join(",\n")},\n${indent}${close}` : open + close;
}

const argumentLines = (values, indent = "    ") => Object.entries(values).map(([name, value]) => `${indent}${name}=${python(value, indent)},`);

/** `body` in two: what OpenAI's API has, and what goes into `extra_body`. */
function divided(body) {
  const entries = Object.entries(body);
  const extra = Object.fromEntries(entries.filter(([name]) => NOT_OPENAIS.includes(name)));
  const own = Object.fromEntries(entries.filter(([name]) => !NOT_OPENAIS.includes(name)));
  return Object.keys(extra).length ? { ...own, extra_body: extra } : own;
}

function openai(body) {
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${python(setup.gateway)}, api_key=os.environ["${KEY}"])`,
    "stream = client.chat.completions.create(",
    ...argumentLines({ ...divided(body), stream: true }),
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    `        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
  ].join("\n");
}

function langchain(body) {
  const { messages, tools, tool_choice, parallel_tool_calls, response_format, model, ...sampling } = divided(body);
  const given = Object.entries({ tool_choice, parallel_tool_calls, response_format }).filter(([, value]) => value !== undefined);
  const bound = Object.fromEntries(given);
  const lines = [
    "import os",
    "",
    "from langchain_openai import ChatOpenAI",
    "",
    "llm = ChatOpenAI(",
    `    base_url=${python(setup.gateway)},`,
    `    api_key=os.environ["${KEY}"],`,
    ...argumentLines({ model, ...sampling }),
    ")",
  ];
  if (tools) lines.push(`tools = ${python(tools)}`);
  if (tools) lines.push("llm = llm.bind_tools(", "    tools,", ...argumentLines(bound), ")");
  else if (response_format) lines.push("llm = llm.bind(", ...argumentLines(bound), ")");
  lines.push(`messages = ${python(messages)}`, "for chunk in llm.stream(messages):", `    print(chunk.text, end="", flush=True)`);
  return lines.join("\n");
}

/** `body` with the beginning of each image's data: an image would fill the dialog. */
const shortened = (body) =>
  JSON.parse(JSON.stringify(body, (name, value) => (name === "url" && String(value).startsWith("data:") ? `${value.slice(0, IMAGE_CHARACTERS)}…` : value)));

/** Opens the dialog with `body` in each language. */
export function showCode(body) {
  for (const [id, write] of [["curl", curl], ["python", openai], ["langchain", langchain]]) {
    document.querySelector(`#code-${id} code`).textContent = write(shortened(body));
  }
  document.getElementById("code-dialog").showModal();
}
