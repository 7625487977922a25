// Small behaviours by data attribute, delegated from the document so that swapped parts have them too.
import { toast, toastText } from "./toast.js";

const YEAR = 31536000;

const clicks = {
  "[data-theme-choice]": (button) => chooseTheme(button.dataset.themeChoice),
  "[data-copy]": (button) => copy(button),
  "[data-dialog-open]": (button, event) => openDialog(button, event),
  "[data-dialog-close]": (button) => button.closest("dialog").close(),
  '[role="tab"]': (tab) => selectTab(tab),
};
document.addEventListener("click", (event) => {
  for (const [selector, act] of Object.entries(clicks)) {
    const found = event.target.closest(selector);
    if (found) act(found, event);
  }
  for (const menu of document.querySelectorAll("[data-menu][open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    const menu = document.querySelector("[data-menu][open]");
    if (menu) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  }
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step && event.target.matches('[role="tab"]')) {
    const tabs = [...event.target.parentElement.children];
    selectTab(tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length]).focus();
  }
});

document.addEventListener("change", (event) => {
  const shown = event.target.dataset?.shows;
  if (!shown) return;
  for (const choice of event.target.form.querySelectorAll("[data-shows]")) {
    event.target.form.querySelector(choice.dataset.shows).hidden = !choice.checked;
  }
});

const reached = new WeakSet();

/** Sends the form if the server answers: a browser that calls itself offline reaches its own machine, say. */
async function sendIfReached(form, submitter) {
  try {
    await fetch("/", { method: "HEAD", redirect: "manual", cache: "no-store" });
  } catch {
    toast("error", toastText("lost"));
    return;
  }
  reached.add(form);
  form.requestSubmit(submitter);
  reached.delete(form);
}

// A form sent twice by a double click would do its work twice. By attribute: a control may be called "dataset".
document.addEventListener("submit", (event) => {
  if (!navigator.onLine && !event.defaultPrevented && !reached.has(event.target)) {
    // The browser would put its own page in the place of what was entered here.
    event.preventDefault();
    sendIfReached(event.target, event.submitter);
    return;
  }
  if (!event.target.matches("[data-once]")) return;
  if (event.target.hasAttribute("data-sent")) event.preventDefault();
  event.target.setAttribute("data-sent", "yes");
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("[data-once][data-sent]")) form.removeAttribute("data-sent");
});

/** Shows the dialog that the button names. One that all rows share is told which of them it is about. */
function openDialog(button, event) {
  const dialog = document.getElementById(button.dataset.dialogOpen);
  if (!dialog) return;
  // A link leads to the page with the dialog open, for browsers without scripts.
  event.preventDefault();
  const { dialogAction, dialogTitle, dialogValue } = button.dataset;
  if (dialogAction) {
    const form = dialog.querySelector("form");
    form.reset();
    form.setAttribute("action", dialogAction);
    dialog.querySelector("[data-dialog-heading]").textContent = dialogTitle;
    const choice = dialog.querySelector("[data-dialog-choice]");
    if (choice) choice.value = dialogValue;
  }
  dialog.showModal();
}

// The server opens a dialog whose form has errors, or that a link asked for.
for (const dialog of document.querySelectorAll("dialog[open]")) {
  dialog.close();
  dialog.showModal();
}

function chooseTheme(theme) {
  // A cookie, so that the server writes the choice into the first byte of the page and nothing flashes.
  document.cookie = `theme=${theme}; path=/; max-age=${theme ? YEAR : 0}; samesite=lax`;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  for (const button of document.querySelectorAll("[data-theme-choice]")) {
    button.setAttribute("aria-pressed", String(button.dataset.themeChoice === theme));
  }
  document.dispatchEvent(new CustomEvent("themechange"));
}

async function copy(button) {
  const source = document.querySelector(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    toast("success", toastText("copied"));
  } catch {
    // Without a secure origin there is no clipboard: selected text is one key away from being copied.
    getSelection().selectAllChildren(source);
  }
}

function selectTab(tab) {
  for (const other of tab.parentElement.children) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  return tab;
}
