"""Damaged checkpoints: every refusal names the file, and the tensor where it is one tensor's."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker_engine.conftest import EngineFactory
from tests.worker_engine.tiny_model import random_weights, tiny_config, write_checkpoint
from worker_engine.errors import CheckpointError

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
Q: Final = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint written twice: `single` and `sharded`."""
    root = tmp_path_factory.mktemp("saved")
    config = tiny_config()
    for name, size in (("single", None), ("sharded", 100_000)):
        write_checkpoint(root / name, config, random_weights(config, seed=1), shard_bytes=size)
    return root


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(saved / name, tmp_path / name))


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / SINGLE)
    edit(tensors)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def rewrite(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    edit(index)
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(Q), rf"single has no tensor {Q}"),
        (
            lambda t: t.update({Q: t[Q][:-1]}),
            rf"{SINGLE}: tensor {Q} has shape \[71, 72\], expected \[72, 72\]",
        ),
        (lambda t: t.update({Q: t[Q].to(torch.int8)}), rf"{SINGLE}: tensor {Q} is torch.int8"),
        (lambda t: t.update({Q: t[Q].to(torch.float8_e4m3fn)}), rf"{SINGLE}: tensor {Q} is torch.float8"),
        (
            lambda t: t.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(72)}),
            rf"{SINGLE}: tensor model.layers.1.self_attn.q_proj.bias has no place",
        ),
        (lambda t: t.update({"model.layers.3.x": torch.ones(2)}), r"model.layers.3.x has no place"),
    ],
)
def test_tensors_that_do_not_fit(
    edit: Any, message: str, folder: Callable[[str], Path], make_engine: EngineFactory
) -> None:
    path = folder("single")
    change(path, edit)
    with pytest.raises(CheckpointError, match=message):
        make_engine(path)


@pytest.mark.parametrize("keep", [0, 7, 200, -1])
@pytest.mark.parametrize("name", ["single", "sharded"])
def test_truncated_files(
    name: str, keep: int, folder: Callable[[str], Path], make_engine: EngineFactory
) -> None:
    path = folder(name)
    file = sorted(path.glob("*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=file.name):
        make_engine(path)


def test_corrupted_header(folder: Callable[[str], Path], make_engine: EngineFactory) -> None:
    path = folder("single")
    data = bytearray((path / SINGLE).read_bytes())
    data[8:40] = b"\xff" * 32
    (path / SINGLE).write_bytes(data)
    with pytest.raises(CheckpointError, match=SINGLE):
        make_engine(path)


def test_missing_shard(folder: Callable[[str], Path], make_engine: EngineFactory) -> None:
    path = folder("sharded")
    file = sorted(path.glob("*.safetensors"))[1]
    file.unlink()
    with pytest.raises(CheckpointError, match=file.name):
        make_engine(path)


def test_shard_without_a_promised_tensor(folder: Callable[[str], Path], make_engine: EngineFactory) -> None:
    path = folder("sharded")
    first = sorted(path.glob("*.safetensors"))[0]
    rewrite(path, lambda index: index["weight_map"].update({"model.more": first.name}))
    with pytest.raises(CheckpointError, match=rf"{first.name} has no tensor model\.more"):
        make_engine(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda index: index.pop("weight_map"),
        lambda index: index.update(weight_map=[]),
        lambda index: index.update(weight_map={}),
        lambda index: index["weight_map"].update({Q: 3}),
        lambda index: index["weight_map"].update({Q: "../other.safetensors"}),
        lambda index: index["weight_map"].update({Q: "/etc/passwd"}),
    ],
)
def test_malformed_index(edit: Any, folder: Callable[[str], Path], make_engine: EngineFactory) -> None:
    path = folder("sharded")
    rewrite(path, edit)
    with pytest.raises(CheckpointError, match=INDEX):
        make_engine(path)


def test_code_beside_the_weights_is_never_run(
    folder: Callable[[str], Path], make_engine: EngineFactory
) -> None:
    """`auto_map` names a module of the checkpoint's own, which transformers would import if it were let."""
    path = folder("single")
    (path / "modeling_evil.py").write_text("raise SystemExit('the checkpoint was run')")
    config = json.loads((path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    (path / "config.json").write_text(json.dumps(config))
    make_engine(path)
    assert "modeling_evil" not in sys.modules


def test_no_weights(folder: Callable[[str], Path], make_engine: EngineFactory) -> None:
    path = folder("single")
    (path / SINGLE).rename(path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="safe_serialization"):
        make_engine(path)
