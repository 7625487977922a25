// The register form: dropping files, listing them, the check before their upload, and its progress.
import htmx from "htmx.org";
import { forget, RefusedError, upload } from "./tus.js";
import { toast, toastText } from "./toast.js";

const WANTED = /^adapter_config\.json$|^README\.md$|^adapter_model\.safetensors$|\.(zip|tgz|tar\.gz)$/i;
const FILE = /^adapter_config\.json$|^adapter_model\.safetensors$/i;
// Weights in other forms are sent only where the right ones are missing: the server says what to do with them.
const OTHER_WEIGHTS = /^adapter_model\.|^adapters\.safetensors$|\.(bin|pt|pth|ckpt)$/i;
const UNITS = ["B", "kB", "MB", "GB"];

/** `bytes` for people: 3.7 MB. */
function size(bytes) {
  let unit = 0;
  for (; bytes >= 1000 && unit < UNITS.length - 1; unit += 1) bytes /= 1000;
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${UNITS[unit]}`;
}

function list(input) {
  const target = input.closest("form")?.querySelector("[data-file-list]");
  if (!target) return;
  target.replaceChildren(
    ...[...input.files].map((file) => {
      const row = document.createElement("li");
      row.className = "flex justify-between gap-3 rounded-control bg-sunken px-3 py-1.5";
      const [name, bytes] = [document.createElement("span"), document.createElement("span")];
      name.className = "name min-w-0";
      name.textContent = file.name;
      bytes.className = "text-muted whitespace-nowrap";
      bytes.textContent = size(file.size);
      row.append(name, bytes);
      return row;
    }),
  );
}

const zone = (event) => event.target.closest?.("[data-dropzone]");
for (const name of ["dragover", "dragenter"]) {
  document.addEventListener(name, (event) => {
    if (!zone(event)) return;
    event.preventDefault();
    zone(event).classList.add("is-over");
  });
}
document.addEventListener("dragleave", (event) => zone(event)?.classList.remove("is-over"));
document.addEventListener("drop", (event) => {
  const found = zone(event);
  if (!found) return;
  event.preventDefault();
  found.classList.remove("is-over");
  const input = found.querySelector("input[type=file]");
  input.files = event.dataTransfer.files;
  list(input);
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-dropzone] input[type=file]")) list(event.target);
});
document.addEventListener("htmx:afterSettle", () => {
  const input = document.querySelector("[data-dropzone] input[type=file]");
  if (input) list(input);
});

/** Shows how much of a form's upload is done. */
function show(form, loaded, total) {
  const part = form.querySelector("[data-progress]");
  part.hidden = false;
  part.querySelector("progress").value = (100 * loaded) / total;
  part.querySelector("[data-progress-text]").textContent = `${size(loaded)} / ${size(total)}`;
}

/** Asks the server whether it would take the form with these files, and shows the form's errors if not. */
async function accepted(form, files) {
  const body = new URLSearchParams([...new FormData(form)].filter(([name]) => name !== "files"));
  // How much of an archive is the adapter shows only when it is unpacked.
  const sizes = files.map((file) => (FILE.test(file.name) ? file.size : 0));
  body.set("size_bytes", String(sizes.reduce((sum, bytes) => sum + bytes, 0)));
  const headers = { "HX-Request": "true" };
  const reply = await fetch(form.getAttribute("data-check"), { method: "POST", body, headers });
  if (reply.status === 204) return true;
  if (reply.status !== 422) throw new Error(`status ${reply.status}`);
  htmx.swap("#register", await reply.text(), { swapStyle: "outerHTML" });
  return false;
}

// Files beyond a few MB go ahead of their form, piece by piece; the form then names the uploads.
document.addEventListener("htmx:confirm", async (event) => {
  const form = event.target;
  if (!form.matches?.("form[data-upload]") || form.elements.source.value !== "files") return;
  const input = form.querySelector("[data-dropzone] input[type=file]");
  const whole = [...input.files].some((file) => /^adapter_model\.safetensors$|\.(zip|tgz|tar\.gz)$/i.test(file.name));
  const files = [...input.files].filter((file) => WANTED.test(file.name) || (!whole && OTHER_WEIGHTS.test(file.name)));
  if (files.length && files.length < input.files.length) {
    // A trainer's state may be larger than the adapter: it is not sent at all.
    const kept = new DataTransfer();
    for (const file of files) kept.items.add(file);
    input.files = kept.files;
    list(input);
  }
  const total = files.reduce((sum, file) => sum + file.size, 0);
  // Not by `form.dataset`: a form's controls stand before its own properties, and one is called "dataset".
  const own = (name) => form.getAttribute(`data-${name}`);
  if (!files.length) return;
  event.preventDefault();
  const button = form.querySelector("[type=submit]");
  const csrf = form.elements.csrfmiddlewaretoken.value;
  const server = { url: own("uploads"), tenant: own("tenant"), csrf };
  button.disabled = true;
  try {
    if (!(await accepted(form, files))) return;
    if (total < Number(own("resumable"))) {
      event.detail.issueRequest(true);
      return;
    }
    const ids = [];
    let before = 0;
    for (const file of files) {
      ids.push(await upload(file, server, (sent) => show(form, before + sent, total)));
      before += file.size;
    }
    for (const old of form.querySelectorAll("input[name=uploads]")) old.remove();
    for (const id of ids) {
      const field = Object.assign(document.createElement("input"), { type: "hidden", name: "uploads", value: id });
      form.append(field);
    }
    input.disabled = true;
    // A registration that is refused for its name may take the same uploads again; one that is taken, not.
    form.addEventListener("htmx:afterRequest", (after) => {
      input.disabled = false;
      if (after.detail.xhr.status === 204) for (const file of files) forget(file, server);
    }, { once: true });
    event.detail.issueRequest(true);
  } catch (error) {
    toast("error", error instanceof RefusedError ? error.message : toastText("lost"));
  } finally {
    button.disabled = false;
  }
});

document.addEventListener("htmx:xhr:progress", (event) => {
  const form = event.target.closest?.("[data-upload]");
  const { loaded, total, lengthComputable } = event.detail;
  if (form && lengthComputable && total && !form.querySelector("input[name=uploads]")) show(form, loaded, total);
});
document.addEventListener("htmx:afterRequest", (event) => {
  const part = event.target.closest?.("[data-upload]")?.querySelector("[data-progress]");
  if (part) part.hidden = true;
});
