// The register form: dropping files, listing them, and the progress of the upload.
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

document.addEventListener("htmx:xhr:progress", (event) => {
  const part = event.target.closest?.("[data-upload]")?.querySelector("[data-progress]");
  const { loaded, total, lengthComputable } = event.detail;
  if (!part || !lengthComputable || !total) return;
  part.hidden = false;
  part.querySelector("progress").value = (100 * loaded) / total;
  part.querySelector("[data-progress-text]").textContent = `${size(loaded)} / ${size(total)}`;
});
document.addEventListener("htmx:afterRequest", (event) => {
  const part = event.target.closest?.("[data-upload]")?.querySelector("[data-progress]");
  if (part) part.hidden = true;
});
