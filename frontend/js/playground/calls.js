// Tool calls: shown while they stream; then their results are entered, and the conversation goes on.
import { following } from "./column.js";
import { fromTemplate, make, say } from "./setup.js";

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Shows `calls` in `holder`, as far as they have come. */
export function showCalls(holder, calls) {
  calls.forEach((call, index) => {
    const item = holder.children[index] ?? holder.appendChild(fromTemplate("call-template"));
    item.querySelector("[data-name]").textContent = say("call", { name: call.name });
    item.querySelector("[data-arguments]").textContent = pretty(call.arguments);
  });
}

/** What stands in history for an answer with calls: its thought goes on when their results are there. */
export const callsMessage = ({ text, thought }, calls) => ({
  role: "assistant",
  content: text || null,
  ...(thought ? { reasoning_content: thought } : {}),
  tool_calls: calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } })),
});

let forms = 0;

/** Asks for the result of each call; `goOn` sends the messages that tell them, and says whether it could. */
export function askForResults(column, holder, calls, goOn) {
  const form = make("form", { className: "grid gap-2" });
  form.dataset.testid = "results";
  const inputs = [...holder.children].map((item, index) => {
    const input = item.querySelector("[data-result]");
    input.id = `result-${++forms}`;
    const label = item.querySelector("[data-label]");
    label.htmlFor = input.id;
    label.textContent = say("result", { name: calls[index].name });
    item.querySelector("[data-answer]").hidden = false;
    return input;
  });
  const button = make("button", { className: "btn btn-secondary btn-sm justify-self-start", textContent: say("sendResults") });
  button.dataset.testid = "send-results";
  form.append(...holder.children, button);
  following(column, () => holder.append(form));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const results = inputs.map((input, index) => ({ role: "tool", tool_call_id: calls[index].id, content: input.value }));
    if (column.running || !goOn(...results)) return;
    for (const input of inputs) input.readOnly = true;
    button.replaceWith(make("p", { className: "field-hint", textContent: say("resultsSent") }));
  });
}
