"""Every text for people in views and forms is translatable: it is an argument of gettext."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

CONSOLE = ROOT / "controlplane" / "console"
EXEMPT = {
    "adapters/snippets.py": "code, which people paste",
    "account/provider_session.py": "for the log: who logs in is told that it did not work",
    "account/events.py": "for the audit log, which is kept in one language",
    "optimization/comparison_charts.py": "names of a comparison's figures, as it stores them",
    "templatetags/console.py": "an icon's markup",
    "optimization/comparison_form.py": "an arm's name, stored as others that people choose",
}
"""Below `CONSOLE` -> why what looks like a sentence there is none that a page translates."""
UNSEEN = {"NotFoundError", "Http404"}
"""What a page answers by 404, which has a text of its own."""
_SENTENCE = re.compile(r"(?<![\w.])[A-Za-z]{2,} [a-z]{2,}")
_GETTEXT = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy", "pgettext", "pgettext_lazy"}


def untranslated(source: str) -> Iterator[str]:
    """Texts of two words and more, docstrings aside, in no call of gettext."""
    tree, spared = ast.parse(source), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            spared.add(node.value)
        elif isinstance(node, ast.Call) and (
            _called(node.func) in _GETTEXT | UNSEEN or ast.unparse(node.func).startswith("logger.")
        ):
            spared.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in spared or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str) and _SENTENCE.search(node.value):
            yield node.value


def formatted_before(source: str) -> Iterator[str]:
    """Calls of gettext with a text that is made at run time: no catalogue has it."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in calls:
        literal = bool(call.args) and isinstance(call.args[0], ast.Constant)
        if _called(call.func) in _GETTEXT and not literal:
            yield ast.unparse(call)


def _called(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


FILES = sorted(str(path.relative_to(CONSOLE)) for path in CONSOLE.rglob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_every_text_of_the_console_can_be_translated(name: str) -> None:
    source = (CONSOLE / name).read_text()
    found = list(untranslated(source))
    if name in EXEMPT:
        assert found, f"{name} needs no exemption any more"
    else:
        assert found == [], "wrap it: _(), or gettext_lazy() outside of functions"
    assert list(formatted_before(source)) == [], "put values in by % behind the call"


def test_the_rules_find_what_they_forbid() -> None:
    source = '''
def view(request):
    """Not this one."""
    messages.error(request, f"choose one of {names}")
    return _("said by gettext"), {"title": "not said by"}
'''
    assert list(untranslated(source)) == ["choose one of ", "not said by"]
    assert list(formatted_before('_(f"{count} left"); _("%(n)s left") % told; _(text)')) == [
        "_(f'{count} left')",
        "_(text)",
    ]
