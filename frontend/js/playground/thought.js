// The thought before an answer: folded, with its tokens, while it streams and afterwards.
import { make, say } from "./setup.js";

/** A place for the thought of `result`, and `show`, which draws it as far as it has come. */
export function thoughtOf(result) {
  const [title, text] = [make("summary"), make("div", { className: "thought-text" })];
  const holder = make("details", { className: "thought", hidden: true }, title, text);
  holder.dataset.testid = "thought";
  text.dataset.testid = "thought-text";
  const show = () => {
    const tokens = result.usage?.completion_tokens_details?.reasoning_tokens ?? 0;
    holder.hidden = !(result.thought || tokens);
    // Only what changed is written, so that a reader's selection in an open thought stays.
    const label = tokens ? say("thoughtTokens", { tokens }) : say("thought");
    if (title.textContent !== label) title.textContent = label;
    if (text.textContent !== result.thought) text.textContent = result.thought;
  };
  return { holder, show };
}
