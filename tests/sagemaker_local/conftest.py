"""One local SageMaker in front of one worker for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sagemaker_local.processes import LocalSageMaker, run_local
from tests.worker_engine.conftest import tiny_adapters, tiny_model  # noqa: F401


@pytest.fixture(scope="module")
def local(
    tiny_model: Path,  # noqa: F811
    tiny_adapters: dict[str, Path],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalSageMaker]:
    folder = tmp_path_factory.mktemp("local")
    with run_local(tiny_model, tiny_adapters, folder, {"bot": "plain"}) as running:
        yield running
