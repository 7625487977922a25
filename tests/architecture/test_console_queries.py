"""Console modules read and write rows by the selectors and services of the domains."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

CONSOLE = ROOT / "controlplane" / "console"
MODULES = sorted(CONSOLE.rglob("*.py"))
TYPES = {"Model", "QuerySet"}
"""Names of django.db.models that annotations need."""
MANAGERS = {"objects", "_base_manager", "_default_manager"}
FILTERS = {"filter", "exclude", "annotate", "aggregate", "values_list", "select_for_update"}


def queries(source: str) -> list[str]:
    """Return the managers, query expressions and query methods that a module uses."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in MANAGERS:
                found.append(name)
            # `register.filter` declares a template filter.
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in FILTERS:
                found += [] if isinstance(value, ast.Name) and value.id == "register" else [name]
            case ast.ImportFrom(module="django.db.models", names=names):
                found += [alias.name for alias in names if alias.name not in TYPES]
            case ast.ImportFrom(module="django.db", names=names):
                found += [alias.name for alias in names if alias.name == "models"]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(CONSOLE)))
def test_a_module_of_the_console_makes_no_queries(path: Path) -> None:
    assert queries(path.read_text()) == [], "move it to controlplane/<domain>/selectors.py or services.py"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("User.objects.get(pk=1)", ["objects"]),
        ("project_list(tenant=tenant).filter(archived_at=None)", ["filter"]),
        ("from django.db.models import Count, QuerySet", ["Count"]),
        ("from django.db import models, transaction", ["models"]),
        ("@register.filter\ndef money(nano): ...\nregister.filter('nano', money)", []),
        ("project_list(tenant=tenant, active=True)[:50]", []),
    ],
)
def test_the_rule_finds_what_it_forbids(source: str, found: list[str]) -> None:
    assert queries(source) == found
