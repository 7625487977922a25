"""Checks of each page. Every check returns its complaints; an empty list means that the page passes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final

from playwright.sync_api import Page, Response
from playwright.sync_api import TimeoutError as PlaywrightTimeout

AXE: Final = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
TAGS: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
"""WCAG 2.2 AA, and what axe recommends beyond it."""
MOST_BYTES: Final = 100_000
"""Of a page's first load, compressed, without a cache."""
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self' 'nonce-",
    "permissions-policy": "camera=()",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_REDRAWN_MS: Final = 20_000
"""Longest wait for a page that was made narrower to fit; what is too wide costs this once."""
_DIALOGS: Final = 3
"""Dialogs of one page that are opened, the palette among them: those of a list's rows are of one kind."""

_WEIGHT: Final = """() => performance.getEntriesByType("resource")
    .concat(performance.getEntriesByType("navigation"))
    .reduce((sum, entry) => sum + entry.transferSize, 0)"""
_UNREACHABLE: Final = """() => {
  const told = [], seen = (el) => el.checkVisibility({visibilityProperty: true});
  const say = (el, why) => told.push(`${why}: ${el.outerHTML.slice(0, 140)}`);
  const before = document.activeElement;
  for (const el of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    const named = el.labels?.length || el.getAttribute("aria-label") || el.getAttribute("aria-labelledby");
    if (!named) say(el, "no label");
  }
  const controls = "a[href], button, input:not([type=hidden]), select, textarea, summary";
  for (const el of document.querySelectorAll(controls)) {
    if (!seen(el) || el.disabled || el.getAttribute("role") === "tab") continue;
    if (el.tabIndex < 0) { say(el, "not in the order of the Tab key"); continue; }
    el.focus({preventScroll: true});
    if (document.activeElement !== el) say(el, "takes no focus");
  }
  before?.focus?.({preventScroll: true});
  return told;
}"""
_WIDE: Final = """() => {
  const told = [], most = document.documentElement.clientWidth;
  const over = document.documentElement.scrollWidth - most;
  if (over > 0) {
    const widest = [...document.querySelectorAll("body *")]
      .filter((el) => el.getBoundingClientRect().right > most + 1 && !el.closest("[popover]"))
      .slice(0, 3).map((el) => el.outerHTML.slice(0, 120));
    told.push(`scrolls ${over} px sideways at ${most} px: ${widest.join(" | ")}`);
  }
  return told;
}"""
_CUT_TABLES: Final = """() => [...document.querySelectorAll(".table-wrap")]
    .filter((el) => el.scrollWidth > el.clientWidth + 1)
    .map((el) => `a table: ${el.scrollWidth} px in ${el.clientWidth}: ${el.textContent.slice(0, 60)}`)"""
_CUT_CONTROLS: Final = """() =>
  [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
    .filter((el) => el.checkVisibility({visibilityProperty: true}) && !el.closest(".table-wrap"))
    .flatMap((el) => {
      const at = el.getBoundingClientRect();
      for (let box = el.parentElement; box && box !== document.body; box = box.parentElement) {
        const style = getComputedStyle(box), edge = box.getBoundingClientRect();
        if (style.scrollSnapType !== "none") break;  // made to be drawn sideways
        if (at.width <= 1 || style.overflowX === "visible") continue;
        if (at.right > edge.right + 1 || at.left < edge.left - 1)
          return [`a control cut off: ${el.outerHTML.slice(0, 140)}`];
      }
      return [];
    })"""
_CONTRAST: Final = "color-contrast"
_NEW_TEXTS: Final = """(measured) => {
  const known = new Set(measured), controls = "input:not([type=hidden]), select, textarea";
  const decides = /^(class|style|type|open|disabled|(aria|data)-(?!label|describedby|controls|testid).*)$/;
  const hash = (text, sum) => {
    for (let at = 0; at < text.length; at++) sum = (sum * 31 + text.charCodeAt(at)) | 0;
    return sum;
  };
  const looks = new Map();
  const look = (el) => {
    if (el === null) return 7;
    if (!looks.has(el)) {
      const own = [...el.attributes].filter((attribute) => decides.test(attribute.name));
      const told = own.map((attribute) => `[${attribute.name}=${attribute.value}]`).sort().join("");
      looks.set(el, hash(el.tagName + told, look(el.parentElement)));
    }
    return looks.get(el);
  };
  const written = (el) => [...el.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const found = new Map();
  for (const el of document.body.querySelectorAll("*")) {
    if (!(written(el) || el.matches(controls)) || !el.checkVisibility({visibilityProperty: true})) continue;
    const key = look(el);
    if (!known.has(key) && !found.has(key)) found.set(key, el);
  }
  window.newTexts = [...found.values()];
  return [...found.keys()];
}"""
_IN_DIALOG: Final = """(id) => {
  const dialog = document.getElementById(id), at = document.activeElement;
  return !dialog.open ? "closed" : dialog.contains(at) || at === document.body ? "inside" : "outside";
}"""


STILL: Final = """addEventListener("DOMContentLoaded", () => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("* { transition: none !important; animation: none !important; }");
  document.adoptedStyleSheets = [sheet];
});"""
"""For a browser's every page: colours are measured, which on their way from one to the other are neither."""


def axe(
    page: Page, *, part: str = "document", only: Sequence[str] = (), without: Sequence[str] = ()
) -> list[str]:
    """axe-core's violations, as `rule: help: target`.

    Args:
        part: JavaScript for the node or the nodes to look at.
        only: the rules to apply, else those of TAGS.
        without: rules to leave out.
    """
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE)
    chosen = {"type": "rule", "values": list(only)} if only else {"type": "tag", "values": TAGS}
    found: list[dict[str, Any]] = page.evaluate(
        f"async ([runOnly, rules]) => (await axe.run({part},"
        " {runOnly, rules, resultTypes: ['violations']})).violations",
        [chosen, {rule: {"enabled": False} for rule in without}],
    )
    return [
        f"axe {violation['id']}: {violation['help']}: {' | '.join(told[:4])}"
        for violation in found
        if (told := [f"{node['target']} {node['html'][:140]}" for node in violation["nodes"]])
    ]


def accessible(page: Page, measured: set[int]) -> list[str]:
    """axe-core's rules, and the contrast of texts in light and dark.

    Measuring contrast takes two thirds of axe-core's time, so texts with the same tags and attributes around
    them, such as the menu's, are measured on one page. `measured` keeps which those are.
    """
    told = axe(page, without=[_CONTRAST])
    for theme in ("light", "dark"):
        page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
        if found := page.evaluate(_NEW_TEXTS, list(measured)):
            measured.update(found)
            told += [f"{theme}, {fault}" for fault in axe(page, part="{include: newTexts}", only=[_CONTRAST])]
    page.evaluate("() => { delete document.documentElement.dataset.theme; }")
    return told


def protected(response: Response | None, status: int = 200) -> list[str]:
    """The page came with that status, or asks who one is, with every header that keeps a browser from what it
    should not do."""
    if response is None or response.status not in (status, 401):
        return [f"answered {response.status if response else 'nothing'}"]
    found = response.all_headers()
    return [
        f"{name} is {found.get(name)}" for name, part in _HEADERS.items() if part not in found.get(name, "")
    ]


def weight(page: Page) -> list[str]:
    """The first load's bytes on the wire, headers included."""
    size = page.evaluate(_WEIGHT)
    return [f"{size} bytes at first load, at most {MOST_BYTES}"] if size > MOST_BYTES else []


def fits(page: Page) -> list[str]:
    """No sideways scroll and no control cut off on a phone and at a desk; at a desk whole tables."""
    told: list[str] = [row for found in (_WIDE, _CUT_TABLES, _CUT_CONTROLS) for row in page.evaluate(found)]
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    with suppress(PlaywrightTimeout):  # charts are drawn anew when they learn of it
        page.wait_for_function(f"() => ({_WIDE})().length === 0", timeout=_REDRAWN_MS)
    told += page.evaluate(_WIDE) + page.evaluate(_CUT_CONTROLS)
    page.set_viewport_size(DESK)  # type: ignore[arg-type]
    return told


def operable(page: Page) -> list[str]:
    """Every control has a label, and the keyboard reaches it."""
    told: list[str] = page.evaluate(_UNREACHABLE)
    return told


def dialogs(page: Page) -> list[str]:
    """Opened by the keyboard a dialog has the focus, keeps it, and Escape gives it back."""
    told: list[str] = []
    openers = page.locator("[data-dialog-open]:visible")
    for at in range(min(openers.count(), _DIALOGS)):
        opener = openers.nth(at)
        name = opener.get_attribute("data-dialog-open") or ""
        opener.focus()
        page.keyboard.press("Enter")
        for _ in range(6):
            if (where := page.evaluate(_IN_DIALOG, name)) != "inside":
                told.append(f"dialog {name} has the focus {where}")
                break
            page.keyboard.press("Tab")
        if at == 0:
            told += [
                f"dialog {name}, {fault}" for fault in axe(page, part=f"document.getElementById({name!r})")
            ]
        page.keyboard.press("Escape")
        if page.evaluate(_IN_DIALOG, name) != "closed":
            told.append(f"dialog {name} stays open at Escape")
        if not opener.evaluate("(el) => el === document.activeElement"):
            told.append(f"dialog {name} does not give the focus back")
    return told
