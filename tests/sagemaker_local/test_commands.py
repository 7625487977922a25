"""Variables of a container for the process that stands for it."""

from __future__ import annotations

import json
from pathlib import Path

from sagemaker_local.copies.command import ContainerSpec, CopyFolders, variables

AWS = "763104351884.dkr.ecr.eu-central-1.amazonaws.com/djl-inference:0.38.0-lmi29.0.0-cu130"


def test_a_draft_model_of_sagemakers_is_the_workers_draft_model(tmp_path: Path) -> None:
    there = "/opt/ml/additional-model-data-sources/draft_model"
    environment = {"OPTION_SPECULATIVE_DRAFT_MODEL": f"{there}/", "OPTION_MAX_LORA_RANK": "16"}
    folders = CopyFolders(tmp_path, tmp_path, tmp_path, {"draft_model": tmp_path / "draft"})
    found = variables(ContainerSpec(AWS, environment=environment), folders)
    assert list(found) == ["OPTION_SPECULATIVE_CONFIG"], "the worker has no other of these settings"
    assert json.loads(found["OPTION_SPECULATIVE_CONFIG"]) == {
        "method": "draft_model",
        "model": str(tmp_path / "draft"),
    }
