"""Adapters that change what readers see: the layers, the last norm, the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.adapters.test_peft_parity import write_adapter

FORMS: dict[str, dict[str, Any]] = {
    "linear": {"target_modules": "all-linear"},
    "tops": {"target_modules": ["q_proj", "embed_tokens", "lm_head"], "modules_to_save": ["norm"]},
}


@pytest.fixture(scope="session")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by name."""
    root = tmp_path_factory.mktemp("readers")
    return {
        name: write_adapter(tiny_model, root / name, options, seed)
        for seed, (name, options) in enumerate(FORMS.items())
    }
