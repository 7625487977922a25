"""Keeps tests that share a costly fixture in one process of pytest-xdist, which would start it in each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pytest


def run_together(
    items: Iterable[pytest.Item], folder: Path, fixtures: Collection[str], group: str = ""
) -> None:
    """Mark the tests below `folder` that use one of `fixtures` as `group`, or each module as its own."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        if item.path.is_relative_to(folder) and not set(fixtures).isdisjoint(used):
            item.add_marker(pytest.mark.xdist_group(group or str(item.path.relative_to(folder.parent))))
