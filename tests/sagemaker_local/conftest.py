"""One local SageMaker in front of one worker for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sagemaker_local.processes import LocalSageMaker, run_local


@pytest.fixture(scope="module")
def local(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalSageMaker]:
    folder = tmp_path_factory.mktemp("local")
    with run_local(tiny_model, tiny_adapters, folder, {"bot": "plain"}) as running:
        yield running
