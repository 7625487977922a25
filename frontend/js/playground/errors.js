// What became of a request that failed, in the gateway's words, and what to do about it.
import { following } from "./column.js";
import { fromTemplate, make, say, setup } from "./setup.js";

const OF_BUDGET = new Set(["insufficient_quota"]);
const OF_KEY = new Set(["missing_scope", "ip_not_authorized"]);

/** `{hint, link, retry}` of an error: a text, a page that helps, and whether to offer another try. */
function advice(error) {
  const limits = setup.urls.limits && [setup.urls.limits, say("linkLimits")];
  if (error.code === "model_not_found") return { hint: say("hintModel"), link: setup.urls.adapters && [setup.urls.adapters, say("linkAdapters")], retry: true };
  if (OF_BUDGET.has(error.code)) return { hint: say("hintBudget"), link: limits, retry: true };
  if (error.status === 429 && error.never) return { hint: say("hintTooLarge"), retry: true };
  if (error.status === 429) return { hint: error.after ? say("hintRate", { seconds: error.after }) : say("hintRateNow"), link: limits, retry: true };
  if (OF_KEY.has(error.code)) return { hint: say("hintScope"), retry: false };
  if (error.code === "images_not_served") return { hint: say("hintImages"), retry: false };
  if (error.param) return { hint: say("hintParam", { param: error.param }), retry: true };
  if (error.after) return { hint: say("hintRetry", { seconds: error.after }), retry: true };
  return { hint: "", retry: true };
}

/** Shows `error` at the end of the column; `retry` begins another try, and says whether it could. */
export function showError(column, error, retry) {
  const notice = fromTemplate("answer-error");
  const { hint, link, retry: again } = advice(error);
  notice.querySelector("[data-message]").textContent = error.broken ? say("broken") : error.message || say("unreachable");
  const line = notice.querySelector("[data-hint]");
  line.hidden = !hint;
  line.append(hint);
  if (link) line.append(" ", make("a", { className: "link", href: link[0], textContent: link[1] }));
  const button = notice.querySelector("[data-retry]");
  button.hidden = !again;
  button.addEventListener("click", () => {
    if (column.running || !retry()) return;
    notice.remove();
    column.log.focus();
  });
  following(column, () => column.log.append(notice));
  column.log.scrollTop = column.log.scrollHeight;
}
