"""A folder's adapter has the digest that the worker and registration give its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contracts.adapters.folder import folder_digest
from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES
from worker_engine.adapters.disk_cache import files_digest


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("FEATURE_EXTRACTION", (*ADAPTER_FILES, *POOLING_FILES)),
        ("FEATURE_EXTRACTION", (*ADAPTER_FILES, POOLING_FILES[0])),
        ("CAUSAL_LM", ADAPTER_FILES),
    ],
)
def test_the_pooling_of_an_embedding_adapter_is_part_of_its_identity(
    task: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    written = (*ADAPTER_FILES, *POOLING_FILES) if task == "CAUSAL_LM" else names
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"], "task_type": task}
    for name in written:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(config))
    found, digest = folder_digest(tmp_path)
    assert found.task == task
    assert digest == files_digest({name: (tmp_path / name).read_bytes() for name in names})
