// The command palette (Ctrl-K): pages from the menu at once, the rest from the server as the user types.
const dialog = document.getElementById("palette");
const WAIT_MS = 150;
let asked = 0;
let timer = 0;

/** The menu's links: the pages that this user may see. */
function pages(part) {
  return [...document.querySelectorAll("#sidebar .nav-link")]
    .map((link) => ({ kind: dialog.dataset.page, title: link.textContent.trim(), url: link.href }))
    .filter((page) => page.title.toLowerCase().includes(part));
}

function show(found) {
  const list = dialog.querySelector("[role=listbox]");
  list.replaceChildren(
    ...found.map(({ kind, title, url }, at) => {
      const [option, name, label] = ["li", "span", "span"].map((tag) => document.createElement(tag));
      Object.assign(option, { id: `palette-${at}`, className: "palette-option", role: "option" });
      option.dataset.url = url;
      Object.assign(name, { className: "name min-w-0 flex-1", textContent: title });
      Object.assign(label, { className: "text-xs text-muted", textContent: kind });
      option.append(name, label);
      return option;
    }),
  );
  list.hidden = found.length === 0;
  dialog.querySelector("[data-palette-none]").hidden = found.length > 0;
  choose(list.firstElementChild);
}

function choose(option) {
  for (const other of dialog.querySelectorAll("[role=option]")) other.setAttribute("aria-selected", String(other === option));
  const query = dialog.querySelector("input");
  if (option) query.setAttribute("aria-activedescendant", option.id);
  else query.removeAttribute("aria-activedescendant");
  option?.scrollIntoView({ block: "nearest" });
}

async function search(query) {
  const part = query.trim().toLowerCase();
  const number = ++asked;
  show(pages(part));
  clearTimeout(timer);
  if (!part) return;
  timer = setTimeout(async () => {
    const answer = await fetch(`${dialog.dataset.find}?${new URLSearchParams({ q: part })}`).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    const { found } = await answer.json();
    // A later key press has asked for something else.
    if (number === asked) show([...pages(part), ...found]);
  }, WAIT_MS);
}

const keys = {
  ArrowDown: (options, at) => choose(options[(at + 1) % options.length]),
  ArrowUp: (options, at) => choose(options[(at - 1 + options.length) % options.length]),
  Enter: (options, at) => location.assign(options[at].dataset.url),
};

if (dialog) {
  const query = dialog.querySelector("input");
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    if (dialog.open) dialog.close();
    else if (!document.querySelector("dialog[open]")) dialog.showModal();
  });
  new MutationObserver(() => {
    if (!dialog.open) return;
    query.value = "";
    search("");
    query.focus();
  }).observe(dialog, { attributeFilter: ["open"] });
  query.addEventListener("input", () => search(query.value));
  query.addEventListener("keydown", (event) => {
    const options = [...dialog.querySelectorAll("[role=option]")];
    const act = keys[event.key];
    if (!act || options.length === 0 || event.isComposing) return;
    event.preventDefault();
    act(options, options.findIndex((option) => option.ariaSelected === "true"));
  });
  dialog.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) location.assign(option.dataset.url);
    else if (event.target === dialog) dialog.close();
  });
}
