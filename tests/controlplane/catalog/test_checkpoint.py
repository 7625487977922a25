"""Broken base checkpoints are refused, naming the file and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.errors import InvalidInputError
from tests.controlplane.conftest import write_checkpoint

pytestmark = pytest.mark.django_db
SHARD = "model-1.safetensors"


def cut(name: str, size: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return apply


def write(name: str, text: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_text(text)

    return apply


def change(**fields: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))

    return apply


def test_infinity_in_a_field_that_is_not_read_stops_nothing(tmp_path: Path) -> None:
    """Configurations of Mamba hybrids are published with it."""
    folder = write_checkpoint(tmp_path / "base")
    change(time_step_limit=[0.0, float("inf")])(folder)
    assert base_model_register(name="tiny-base", source=folder).max_model_len > 0


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"cannot read .*config\.json"),
        (
            lambda folder: (folder / SHARD).unlink(),
            rf"cannot read .*{SHARD}.*choose a folder with safetensors",
        ),
        (cut(SHARD, 5), rf"{SHARD} is not a safetensors file: it has 5 bytes"),
        (cut(SHARD, 40), rf"{SHARD} is not a safetensors file: its header claims"),
        (cut(SHARD, -1), rf"{SHARD} is not a safetensors file: .*but the file holds"),
        (write("config.json", "{"), r"config\.json is not JSON"),
        (write("config.json", "{}"), "has no architecture"),
        (write("config.json", "[" * 100_000), r"config\.json is not JSON"),
        (change(architectures=["a\0"]), "holds a NUL character"),
        (change(dtype=float("nan")), "holds NaN"),
        (change(architectures=["\ud800"]), "half of a surrogate pair"),
        (change(architectures=["A" * 101]), "too long"),
        (change(max_position_embeddings=float("inf")), "must give max_position_embeddings"),
        (change(max_position_embeddings=1 << 40), "must give max_position_embeddings"),
        (write("model.safetensors.index.json", '{"weight_map": {"a": "../b"}}'), "not in the same folder"),
    ],
)
def test_a_broken_checkpoint_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    folder = write_checkpoint(tmp_path / "base")
    damage(folder)
    with pytest.raises(InvalidInputError, match=reason):
        base_model_register(name="tiny-base", source=folder)
    assert not BaseModel.objects.exists()
