"""A model card as HTML: what strangers wrote, so its markup is text, and its links lead out with no more
than a click's say.

markdown-it with `html` off writes no tag that is not in its own rules, and escapes the rest (ADR 54).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

_FRONT_MATTER: Final = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*$", re.DOTALL | re.MULTILINE)
"""What Hugging Face reads: tags for its search, not for people."""
_OUTSIDE: Final = ("https://", "http://", "mailto:")
_BELOW: Final = 2
"""Heads of the page that stand above the card's."""

_FILLED_CELLS: Final = 16
"""Cells that a table's short rows lack, which markdown-it adds. Its own bound is 65,536 a table: of those a
card of 100 KB has 65, which make 43 MB of HTML."""
# By its name in sys.modules: the package's attribute of that name is the rule's function.
vars(importlib.import_module("markdown_it.rules_block.table"))["MAX_AUTOCOMPLETED_CELLS"] = _FILLED_CELLS


class _Card(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        """A card's relative links are meant for where it was written."""
        return url.lower().startswith(_OUTSIDE)


_MARKDOWN: Final = _Card("commonmark", {"html": False}).enable("table").disable("image")


@lru_cache(maxsize=32)
def card_html(text: str) -> SafeString:
    """The card, without its front matter."""
    tokens = _MARKDOWN.parse(_FRONT_MATTER.sub("", text, count=1))
    _mend(tokens)
    html: str = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return mark_safe(html)  # noqa: S308  # the renderer's own tags around escaped text


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
