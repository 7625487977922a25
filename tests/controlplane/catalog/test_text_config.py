"""The context length is read by whichever name a class gives it, and may not be stated at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.base_routes import UNBOUNDED_CONTEXT
from controlplane.catalog.services import base_model_register
from controlplane.catalog.text_config import NOT_STATED, context_length
from controlplane.deployments.sizing.requirements import Load, Shape, requirements
from controlplane.errors import InvalidInputError
from controlplane.routes.selectors import route_base
from tests.controlplane.catalog.test_checkpoint import change
from tests.controlplane.conftest import write_checkpoint


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"model_type": "mpt", "max_seq_len": 2048}, 2048),
        ({"model_type": "bloom", "seq_length": 4096}, 4096),
        ({"model_type": "rwkv", "context_length": 1024}, 1024),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "x", "max_position_embeddings": None, "text_config": {"n_positions": 7}}, 7),
        ({"model_type": "mamba"}, NOT_STATED),
        ({"model_type": "t5", "max_position_embeddings": -1}, NOT_STATED),
        ({"model_type": "mamba", "max_position_embeddings": None}, NOT_STATED),
        ({"max_position_embeddings": 0}, None),
        ({"max_position_embeddings": "many"}, None),
    ],
)
def test_a_length_goes_by_many_names(config: Mapping[str, Any], length: int | None) -> None:
    assert context_length(config) == length


@pytest.mark.django_db
def test_a_model_without_a_length_is_registered_and_published(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "base")
    change(model_type="mamba", max_position_embeddings=None)(folder)
    base = base_model_register(name="endless", source=folder)
    assert base.max_model_len == NOT_STATED
    route = route_base(base_model="endless")
    assert route is not None
    assert route.max_model_len == UNBOUNDED_CONTEXT


def test_a_model_without_a_length_is_sized_by_the_options_alone() -> None:
    modules = {"model.layers.0.self_attn.k_proj": [8, 8], "model.layers.0.self_attn.v_proj": [8, 8]}
    shape = Shape.from_modules(modules, dtype="bfloat16", max_model_len=NOT_STATED)
    with pytest.raises(InvalidInputError, match=r"states no context length.*set max_model_len"):
        requirements(shape, "ml.g5.xlarge", Load())
    assert any(
        "of 512 tokens" in text for text in requirements(shape, "ml.g5.xlarge", Load(tokens=512)).reasons
    )
