// The controls beside the answers, checked before anything is sent, as parameters of a request.
import { checkSchema, checkTools, Complaint, parsed } from "./checks.js";
import { say } from "./setup.js";

const field = (id) => document.getElementById(id);
const EXAMPLES = {
  schema: {
    type: "object",
    properties: { name: { type: "string" }, mood: { type: "string", enum: ["good", "bad"] } },
    required: ["name", "mood"],
    additionalProperties: false,
  },
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather of a city at this moment",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
};

function number(input) {
  const text = input.value.trim();
  if (!text) return undefined;
  const value = Number(text);
  const low = Number(input.dataset.low);
  const high = Number(input.dataset.high);
  const isWhole = "whole" in input.dataset;
  const right = Number.isFinite(value) && value >= low && value <= high && (!isWhole || Number.isInteger(value));
  if (!right) throw new Complaint(say(isWhole ? "whole" : "number", { low: input.dataset.low, high: input.dataset.high }));
  return value;
}

function format() {
  const kind = field("response_format").value;
  if (kind !== "json_schema") return kind ? { type: kind } : undefined;
  const schema = parsed(field("schema").value);
  checkSchema(schema);
  return { type: kind, json_schema: { name: "answer", schema, strict: true } };
}

function tools() {
  const text = field("tools").value.trim();
  const list = text ? parsed(text) : [];
  checkTools(list);
  return list.length ? list : undefined;
}

function toolChoice(list) {
  const choice = field("tool_choice").value;
  if (!list) {
    if (choice === "auto" || choice === "none") return undefined;
    throw new Complaint(say("choiceNeedsTools"));
  }
  return ["auto", "required", "none"].includes(choice) ? choice : { type: "function", function: { name: choice } };
}

/** Runs `read`; a complaint is told at the control `id`. */
function reading(id, complaints, read) {
  const told = document.getElementById(`${id}-error`);
  let text = "";
  let value;
  try {
    value = read();
  } catch (error) {
    if (!(error instanceof Complaint)) throw error;
    text = error.message;
    complaints.push(field(id));
  }
  if (told.textContent !== text) told.textContent = text;
  field(id).setAttribute("aria-invalid", String(Boolean(text)));
  return value;
}

/** The parameters of a request without model and messages; null where one is wrong, which is told and focused. */
export function parameters() {
  const complaints = [];
  const found = { temperature: Number(field("temperature").value), top_p: Number(field("top_p").value) };
  for (const input of document.querySelectorAll("[data-number]")) {
    found[input.id] = reading(input.id, complaints, () => number(input));
  }
  const stop = field("stop").value.split("\n").filter((line) => line !== "");
  if (stop.length) found.stop = stop;
  found.reasoning_effort = field("reasoning_effort").value || undefined;
  found.response_format = reading("schema", complaints, format);
  found.tools = reading("tools", complaints, tools);
  if (!complaints.includes(field("tools"))) found.tool_choice = reading("tools", complaints, () => toolChoice(found.tools));
  if (found.tools && !field("parallel_tool_calls").checked) found.parallel_tool_calls = false;
  if (complaints.length) {
    complaints[0].closest("details").open = true;
    complaints[0].focus();
    return null;
  }
  return JSON.parse(JSON.stringify(found)); // without what is left to the backend
}

/** The system prompt as messages: none or one. */
export function systemMessages() {
  const content = field("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}

function offerChoices() {
  const choice = field("tool_choice");
  const before = choice.value;
  let names = [];
  try {
    names = tools()?.map((tool) => tool.function.name) ?? [];
  } catch {
    return; // told when it is sent, or left
  }
  for (const option of [...choice.options].slice(3)) option.remove();
  choice.append(...names.map((name) => new Option(name, name)));
  choice.value = [...choice.options].some((option) => option.value === before) ? before : "auto";
}

/** Keeps outputs, choices and complaints in step with what is entered. */
export function watchSettings(root) {
  for (const range of root.querySelectorAll("input[type=range]")) {
    range.addEventListener("input", () => (root.querySelector(`output[for="${range.id}"]`).value = range.value));
  }
  root.querySelector("[data-settings]").addEventListener("submit", (event) => event.preventDefault());
  field("response_format").addEventListener("change", () => {
    root.querySelector("[data-schema]").hidden = field("response_format").value !== "json_schema";
    reading("schema", [], () => (field("schema").value.trim() ? format() : undefined));
  });
  field("schema").addEventListener("change", () => reading("schema", [], format));
  field("tools").addEventListener("change", () => {
    reading("tools", [], tools);
    offerChoices();
  });
  for (const button of root.querySelectorAll("[data-example]")) {
    button.addEventListener("click", () => {
      const input = field(button.dataset.example);
      input.value = JSON.stringify(EXAMPLES[input.id], null, 2);
      input.dispatchEvent(new Event("change"));
      input.focus();
    });
  }
  offerChoices();
}
