"""Pickled adapters become safetensors, and a pickle that would run code is refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from graftwork.convert import convert
from graftwork.errors import ConfigurationError
from safetensors.torch import load_file, save_file

CONFIG = {"peft_type": "LORA", "r": 2}
NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


def folder(path: Path, held: Any, name: str = "adapter_model.bin") -> Path:
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps(CONFIG))
    torch.save(held, path / name)
    return path


class Command:
    """An object that runs a shell command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
@pytest.mark.costly("loads PyTorch in a process")
def test_tensors_come_out_as_they_went_in(tmp_path: Path, name: str) -> None:
    shared = torch.randn(8, 2)
    held = {
        NAME.format("A"): torch.randn(2, 8, dtype=torch.bfloat16),
        NAME.format("B"): shared.t(),
        NAME.format("C"): shared,
    }
    target = convert(folder(tmp_path / "old", held, name), tmp_path / "deep" / "new")
    assert sorted(path.name for path in target.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert json.loads((target / "adapter_config.json").read_text()) == CONFIG
    made = load_file(target / "adapter_model.safetensors")
    assert made.keys() == held.keys()
    assert all(torch.equal(made[key], held[key]) and made[key].dtype == held[key].dtype for key in held)
    assert list((tmp_path / "deep").iterdir()) == [target]


def sharded(path: Path, held: dict[str, torch.Tensor]) -> Path:
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps(CONFIG))
    places = {name: f"adapter_model-0000{index}-of-00002.safetensors" for index, name in enumerate(held, 1)}
    for name, shard in places.items():
        save_file({name: held[name]}, path / shard)
    (path / "adapter_model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


def test_shards_become_one_file(tmp_path: Path) -> None:
    held = {NAME.format(part): torch.randn(4, 4, dtype=torch.bfloat16) for part in "AB"}
    target = convert(sharded(tmp_path / "old", held), tmp_path / "new")
    made = load_file(target / "adapter_model.safetensors")
    assert made.keys() == held.keys()
    assert all(torch.equal(made[key], held[key]) for key in held)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("adapter_model.safetensors.index.json", "{}", "have no 'weight_map'"),
        ("adapter_model.safetensors.index.json", '{"weight_map": {"x": "../../a"}}', "cannot be read"),
        ("adapter_model.safetensors.index.json", '{"weight_map": [1]}', "cannot be read"),
        ("adapter_model-00002-of-00002.safetensors", "", "cannot be read"),
    ],
)
def test_damaged_shards_are_refused_and_leave_nothing(
    tmp_path: Path, file: str, text: str, reason: str
) -> None:
    held = {NAME.format(part): torch.zeros(4, 4) for part in "AB"}
    source = sharded(tmp_path / "old", held)
    (source / file).write_text(text)
    with pytest.raises(ConfigurationError, match=reason):
        convert(source, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("protocol", ["torch", "plain"])
@pytest.mark.costly("loads PyTorch in a process")
def test_a_pickle_that_would_run_code_does_not(tmp_path: Path, protocol: str) -> None:
    marker = tmp_path / "marker"
    source = folder(tmp_path / "old", {NAME.format("A"): Command(f"touch {marker}")})
    if protocol == "plain":
        (source / "adapter_model.bin").write_bytes(pickle.dumps(Command(f"touch {marker}")))
    with pytest.raises(ConfigurationError, match="holds objects other than tensors"):
        convert(source, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ([torch.zeros(1)], "it holds a list"),
        ({}, "it holds a dict"),
        ({"a": {"b": torch.zeros(1)}}, "'a' is not a plain tensor"),
        ({1: torch.zeros(1)}, "'1' is not a plain tensor"),
        ({"a": torch.zeros(4, 4).to_sparse()}, "'a' is not a plain tensor"),
        ({"a": torch.zeros(1).expand(1 << 35)}, "exceeds its resource limits"),
    ],
)
@pytest.mark.costly("loads PyTorch in a process")
def test_what_is_no_adapter_is_said_and_nothing_is_made(tmp_path: Path, held: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        convert(folder(tmp_path / "old", held), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_time_and_folders_are_held_to(tmp_path: Path) -> None:
    source = folder(tmp_path / "old", {"a": torch.zeros(1)})
    with pytest.raises(ConfigurationError, match=r"time limit of 0\.01 seconds"):
        convert(source, tmp_path / "new", seconds=0.01)
    with pytest.raises(ConfigurationError, match="already exists"):
        convert(source, source)
    (source / "adapter_config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"has no adapter_config\.json"):
        convert(source, tmp_path / "new")
    (source / "adapter_model.bin").unlink()
    with pytest.raises(ConfigurationError, match="nothing to convert"):
        convert(source, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
