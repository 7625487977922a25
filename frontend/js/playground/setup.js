// What the page was made with: its words, its addresses, its models.
const element = document.getElementById("playground-setup");

/** `{gateway, columns, bases, most, texts, urls}`; null on a page without a base model. */
export const setup = element ? JSON.parse(element.textContent) : null;

/** The translated text `name`, with `{word}` replaced by `values.word`. */
export const say = (name, values = {}) => setup.texts[name].replace(/\{(\w+)\}/g, (whole, word) => values[word] ?? whole);

/** A copy of what stands in the template `id`. */
export const fromTemplate = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

/** An element with text, or with elements, in it. */
export function make(tag, properties = {}, ...children) {
  const item = Object.assign(document.createElement(tag), properties);
  item.append(...children);
  return item;
}

/** Tells those who listen instead of looking: once an event, never once a token. */
export function announce(text) {
  document.querySelector("[data-status]").textContent = text;
}
