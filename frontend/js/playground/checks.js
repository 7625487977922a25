// What is entered as JSON, checked as far as it can be without the backend, which checks it whole.
import { say } from "./setup.js";

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"];
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Something entered is not acceptable; its message says what to enter. */
export class Complaint extends Error {}

/** The JSON in `text`. Throws a Complaint. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Complaint(say("badJson", { reason: error.message }));
  }
}

/** Throws a Complaint that names the place where `schema` is no JSON schema. */
export function checkSchema(schema) {
  if (!isObject(schema)) throw new Complaint(say("schemaObject"));
  checkNode(schema, "$");
}

function checkNode(node, path) {
  const refuse = (name, values) => {
    throw new Complaint(say("schemaAt", { path, reason: say(name, values) }));
  };
  if (typeof node === "boolean") return;
  if (!isObject(node)) refuse("schemaItems");
  const types = node.type === undefined ? [] : [node.type].flat();
  if (!types.every((type) => TYPES.includes(type))) refuse("schemaType", { types: TYPES.join(", ") });
  if (node.properties !== undefined && !isObject(node.properties)) refuse("schemaProperties");
  const known = Object.keys(node.properties ?? {});
  const required = node.required ?? [];
  const open = node.additionalProperties !== false;
  if (!Array.isArray(required) || !required.every((name) => typeof name === "string" && (open || known.includes(name)))) refuse("schemaRequired");
  if (node.enum !== undefined && !(Array.isArray(node.enum) && node.enum.length)) refuse("schemaEnum");
  for (const name of known) checkNode(node.properties[name], `${path}.${name}`);
  if (node.items !== undefined) checkNode(node.items, `${path}[]`);
  for (const word of ["anyOf", "allOf", "oneOf"]) (node[word] ?? []).forEach?.((part, index) => checkNode(part, `${path}.${word}[${index}]`));
}

/** Throws a Complaint where `list` is no list of tools. */
export function checkTools(list) {
  const right = (tool) => isObject(tool) && tool.type === "function" && isObject(tool.function);
  if (!Array.isArray(list) || !list.every(right)) throw new Complaint(say("toolsList"));
  const names = new Set();
  list.forEach(({ function: { name, parameters } }, index) => {
    if (!/^[a-zA-Z0-9_-]{1,64}$/.test(name ?? "")) throw new Complaint(say("toolName", { n: index + 1 }));
    if (names.has(name)) throw new Complaint(say("toolTwice", { name }));
    names.add(name);
    if (parameters !== undefined) checkSchema(parameters);
  });
}
