"""Tests of the benchmarks are slow, and importing the benchmarks takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of these for a run without slow tests."""
    return True if config.option.markexpr == "not slow" and collection_path.suffix == ".py" else None
