// What an answer costs: exact, in nano-units, by the prices that are in force for what really answered.
// The same response says whether the model reads images.
import { say, setup } from "./setup.js";

const asked = new Map();

/** `{currency, units, reads_images}` of a model, asked for once a page; null where it could not be told. */
async function pricesOf(model) {
  const response = await fetch(`${setup.urls.prices}?${new URLSearchParams({ model })}`).catch(() => null);
  return response?.ok && !response.redirected ? response.json() : null;
}

function known(model) {
  if (!asked.has(model)) {
    const answer = pricesOf(model);
    asked.set(model, answer);
    answer.then((prices) => prices ?? asked.delete(model));
  }
  return asked.get(model);
}

/** Whether `model` is known to read text alone. */
export const isTextOnly = async (model) => (await known(model))?.reads_images === false;

/** Nano-units as an amount of money with every digit that says something. */
export function money(nano, currency) {
  const digits = String(nano).padStart(10, "0");
  const text = `${digits.slice(0, -9)}.${digits.slice(-9)}`;
  const format = new Intl.NumberFormat(document.documentElement.lang, { style: "currency", currency, minimumFractionDigits: 2, maximumFractionDigits: 9 });
  return format.format(text);
}

/** `{text, title}` of what `usage` of `model` costs; a request that failed is not charged for itself. */
export async function costOf(model, usage, hasFailed) {
  const prices = await known(model);
  if (!prices) return { text: say("costUnknown"), title: say("costUnknownTitle") };
  if (prices.units.includes(null)) return { text: say("unpriced"), title: say("unpricedTitle"), isUnpriced: true };
  const cached = BigInt(usage.prompt_tokens_details?.cached_tokens ?? 0);
  const input = BigInt(usage.prompt_tokens) - cached;
  const thought = BigInt(usage.completion_tokens_details?.reasoning_tokens ?? 0);
  const output = BigInt(usage.completion_tokens) - thought;
  const tokens = (unit) => input * BigInt(unit.input) + cached * BigInt(unit.cached) + output * BigInt(unit.output) + thought * BigInt(unit.reasoning ?? unit.output);
  const cost = (unit) => tokens(unit) + (hasFailed ? 0n : BigInt(unit.request));
  const costs = prices.units.map(cost).sort((a, b) => (a < b ? -1 : 1));
  const [low, high] = [costs[0], costs.at(-1)].map((nano) => money(nano, prices.currency));
  return { text: low === high ? low : say("costOpen", { low, high }), title: say("costTitle") };
}
