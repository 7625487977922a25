// Images of the next message: chosen, pasted or dropped, checked by the gateway's bounds, and shown until they are sent.
import { conversation } from "./column.js";
import { isTextOnly } from "./prices.js";
import { announce, fromTemplate, say, setup } from "./setup.js";

const BODY_BYTES = 2 << 20; // the gateway's default; its operator may allow more, so that it is told and not refused
const parts = (message) => (Array.isArray(message.content) ? message.content : []);
let images = []; // {name, url, pixels}
let reading = 0;
let notes = 0;
let columnsNow = () => [];
const pixelsOf = new Map(); // of each data URL that was sent

/** Data URLs of the images in `messages`. */
export const imagesOf = (messages) => messages.flatMap(parts).filter((part) => part.type === "image_url").map((part) => part.image_url.url);

/** The content of a user's message: a text, or parts where it has images. */
export function contentOf(text, urls) {
  if (!urls.length) return text;
  const first = text ? [{ type: "text", text }] : [];
  return [...first, ...urls.map((url) => ({ type: "image_url", image_url: { url } }))];
}

/** The number of images that wait to be sent. */
export const attached = () => images.length + reading;

/** The data URLs of the attached images, which are attached no more. */
export function takeAttached() {
  const taken = images;
  for (const { url, pixels } of taken) pixelsOf.set(url, pixels);
  images = [];
  show();
  return taken.map(({ url }) => url);
}

/** Why the attached images cannot be sent; "" when they can. */
export function imageObstacle() {
  return reading ? say("imageReading") : beyondBounds();
}

/** Which of the gateway's bounds the images of a conversation exceed with the attached ones; "" for none. */
function beyondBounds() {
  if (!images.length) return "";
  for (const sent of columnsNow().map((column) => imagesOf(conversation(column)))) {
    if (sent.length + images.length > setup.images.most) return say("imageMost", { most: setup.images.most });
    const pixels = [...sent.map((url) => pixelsOf.get(url)), ...images.map((image) => image.pixels)];
    if (pixels.reduce((sum, item) => sum + item, 0) > setup.images.pixels) return say("imagePixels", { most: setup.images.pixels });
  }
  return "";
}

/** Says what will become of the attached images: which columns read none, and whether they are too large. */
export async function noteImages() {
  const columns = columnsNow();
  const turn = ++notes;
  const texts = [];
  if (images.length) {
    const known = await Promise.all(columns.map(({ model }) => isTextOnly(model)));
    texts.push(...columns.filter((_, index) => known[index]).map(({ model }) => say("textOnly", { model })));
    const size = images.reduce((sum, { url }) => sum + url.length, Math.max(0, ...columns.map((column) => JSON.stringify(conversation(column)).length)));
    if (size > BODY_BYTES) texts.push(say("bodySize", { size: (size / (1 << 20)).toFixed(1) }));
  }
  if (turn === notes) document.getElementById("image-note").textContent = texts.join(" ");
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** The image in `file`. Throws an Error that says why it cannot be sent. */
async function read(file) {
  const { name } = file;
  const refuse = (text, values) => new Error(say(text, { name, ...values }));
  if (!setup.images.types.includes(file.type)) throw refuse("imageType");
  const image = new Image();
  image.src = await dataUrl(file);
  await image.decode().catch(() => {
    throw refuse("imageType");
  });
  const { naturalWidth: width, naturalHeight: height } = image;
  if (Math.max(width, height) > setup.images.side) throw refuse("imageSide", { width, height, most: setup.images.side });
  return { name, url: image.src, pixels: width * height };
}

function show() {
  const list = document.querySelector("[data-previews]");
  list.hidden = !images.length;
  list.replaceChildren(...images.map(preview));
  noteImages();
}

function preview(image) {
  const item = fromTemplate("preview-template");
  Object.assign(item.querySelector("[data-image]"), { src: image.url, alt: image.name });
  const button = item.querySelector("[data-remove]");
  button.ariaLabel = button.title = say("removeImage", { name: image.name });
  button.addEventListener("click", () => {
    images = images.filter((other) => other !== image);
    document.getElementById("prompt-error").textContent = "";
    announce(say("imageRemoved", { name: image.name }));
    show();
    document.getElementById("prompt").focus();
  });
  return item;
}

/** Attaches each of `files` that the gateway would take, and says why it does not take the others. */
async function attach(files) {
  const refused = [];
  reading += files.length;
  for (const file of files) {
    try {
      const image = await read(file);
      images.push(image);
      const obstacle = beyondBounds();
      if (obstacle) {
        images.pop();
        throw new Error(obstacle);
      }
      announce(say("imageAdded", { name: file.name }));
    } catch (error) {
      refused.push(error.message);
    } finally {
      reading -= 1;
    }
  }
  document.getElementById("prompt-error").textContent = [...new Set(refused)].join(" ");
  show();
}

/** Lets images be chosen, pasted and dropped in the form `composer`; `columns` returns the columns of now. */
export function watchImages(composer, columns) {
  columnsNow = columns;
  const input = document.getElementById("image-files");
  composer.querySelector("[data-attach]").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    attach([...input.files]);
    input.value = ""; // the same file can be chosen again after it was removed
  });
  composer.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return; // a text that office programs copy as a picture too
    event.preventDefault();
    attach([...files]);
  });
  composer.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    composer.dataset.drag = "";
  });
  for (const name of ["dragleave", "drop"]) composer.addEventListener(name, () => delete composer.dataset.drag);
  composer.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attach([...event.dataTransfer.files]);
  });
}
