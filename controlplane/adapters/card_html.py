"""Renders a model card as HTML. Its author is untrusted, so HTML in the card is shown as text.

markdown-it with `html` off writes no tag that is not in its own rules, and escapes the rest (ADR 54). A card
can be crafted so that parsing takes seconds: `card_render` parses it in a subprocess, which runs this file
and imports nothing of the control plane.
"""

from __future__ import annotations

import importlib
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

CPU_SECONDS: Final = 1
"""CPU limit of the process, including Python's start (0.1 s). A typical card of 100 kB takes 0.2 s."""
MEMORY_BYTES: Final = 1 << 29
"""Limit of the process's address space."""
MAX_HTML_BYTES: Final = 500_000
_WALL_SECONDS: Final = 60
"""Time limit on a busy machine, where the process gets its CPU time late."""
_FRONT_MATTER: Final = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*$", re.DOTALL | re.MULTILINE)
"""Front matter: tags for Hugging Face's search, not for readers."""
_OUTSIDE: Final = ("https://", "http://", "mailto:")
_BELOW: Final = 2
"""Heading levels of the page above the card's headings."""

_FILLED_CELLS: Final = 16
"""Limit of empty cells that markdown-it adds to a table's short rows. With the default of 65,536 per
table, a card of 100 KB can have 65 such tables, which make 43 MB of HTML."""
# By its name in sys.modules: the package's attribute of that name is the rule's function.
vars(importlib.import_module("markdown_it.rules_block.table"))["MAX_AUTOCOMPLETED_CELLS"] = _FILLED_CELLS


class _Card(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        """Refuse relative links, which refer to the card's original site."""
        return url.lower().startswith(_OUTSIDE)


_MARKDOWN: Final = _Card("commonmark", {"html": False}).enable("table").disable("image")


def card_render(text: str) -> str:
    """Return the card as HTML, "" when rendering it takes too much time, memory or HTML."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__],
            input=text.encode(),
            capture_output=True,
            check=True,
            timeout=_WALL_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode() if len(done.stdout) <= MAX_HTML_BYTES else ""


def card_html(text: str) -> str:
    """Return the card without its front matter as HTML, in which the writer's own markup is text."""
    tokens = _MARKDOWN.parse(_FRONT_MATTER.sub("", text, count=1))
    _mend(tokens)
    html: str = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return html


def _mend(tokens: Sequence[Token]) -> None:
    for token in tokens:
        # Columns are aligned by a style attribute, which the page's policy refuses.
        token.attrs.pop("style", None)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + _BELOW)}"
        if token.type == "link_open":
            token.attrSet("rel", "noopener noreferrer nofollow")
            token.attrSet("target", "_blank")
        _mend(token.children or ())


def main() -> None:
    """Renders standard input to standard output within the limits; what breaks one ends the process."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.buffer.write(card_html(sys.stdin.buffer.read().decode()).encode())


if __name__ == "__main__":
    main()
