"""The usage event's fields are listed by its contract, its table and its producer, and nowhere else.

A file lists a group of fields if one class body, call or literal names all of the group. A file that reads
single fields, such as a price by tokens, lists nothing. Migrations count as one with their model.
"""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from contracts.usage_event import UsageEvent

ROOT: Final = Path(__file__).parents[2]
PLANES: Final = ("contracts", "gateway", "controlplane")
GROUPS: Final = {
    "caller": {"tenant", "project", "key_id", "request_id", "attempt"},
    "model": {"requested_model", "alias", "arm", "adapter", "base_model", "operation"},
    "outcome": {"backend", "endpoint", "status", "error_code"},
    "tokens": {
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "images",
        "estimated",
    },
    "times": {"ttft_ms", "itl_ms", "duration_ms", "started_at"},
    "ids": {"event_id", "gateway_id"},
}
LISTS: Final = {"contracts/usage_event.py", "controlplane/metering/models.py", "gateway/usage/metering.py"}
PUBLIC_SCHEMAS: Final = {
    "controlplane/billing/reports/requests_api.py",
    "controlplane/metering/cloud_events/usage.py",
}
"""Published formats with names, limits and help texts of their own; a new field appears there by choice."""
SYNTAX: Final = {
    "class A:\n    tenant: str\n    project: str\n": {"tenant", "project"},
    "class A:\n    tenant = CharField()\n    project = CharField()\n": {"tenant", "project"},
    "f(tenant=1, project=2)": {"tenant", "project"},
    "x = ('tenant', 'project')": {"tenant", "project"},
    "x = {'tenant': 1, 'project': 2}": {"tenant", "project"},
    "x = 'SELECT tenant, project'": {"tenant", "project"},
    "a.tenant + a.project": set[str](),
}


def named(node: ast.AST) -> set[str]:
    """Return the names that a class body, a call or a literal lists; empty for other nodes."""
    match node:
        case ast.ClassDef(body=body):
            targets: list[ast.expr] = [item.target for item in body if isinstance(item, ast.AnnAssign)]
            targets += [target for item in body if isinstance(item, ast.Assign) for target in item.targets]
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.Call(keywords=keywords):
            return {keyword.arg for keyword in keywords if keyword.arg}
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return {str(item.value) for item in items if isinstance(item, ast.Constant)}
        case ast.Dict(keys=keys):
            return {str(key.value) for key in keys if isinstance(key, ast.Constant)}
        case ast.Constant(value=str(text)):
            return {word.strip(" ,()") for word in text.split()}
    return set()


@pytest.mark.parametrize(("source", "found"), SYNTAX.items())
def test_lists_are_recognized(source: str, found: set[str]) -> None:
    lists = [named(node) & {"tenant", "project"} for node in ast.walk(ast.parse(source))]
    assert set().union(*(names for names in lists if len(names) == 2)) == found


def test_the_groups_have_every_field() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(
        item.name for item in fields(UsageEvent)
    )


@pytest.mark.parametrize("group", GROUPS)
def test_only_three_files_list_a_group_of_fields(group: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for plane in PLANES
        for path in (ROOT / plane).rglob("*.py")
        if "migrations" not in path.parts
        and any(GROUPS[group] <= named(node) for node in ast.walk(ast.parse(path.read_bytes())))
    }
    assert found - PUBLIC_SCHEMAS == LISTS
