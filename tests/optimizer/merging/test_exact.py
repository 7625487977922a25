"""A merged checkpoint's weights, against sums in float64 that are computed by hand."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from contracts.recipes.model_facts import Checkpoint, checkpoint_files, sha256_of
from contracts.recipes.progress import Code, JobError, Phase, Reporter
from optimizer.merging import merge, shards
from tests.optimizer.merging.layouts import LAYOUTS, Layout, merged_by_hand, write_adapter, write_base
from tests.worker_engine.tiny_adapter import make_adapter
from tests.worker_engine.tiny_model import write_model
from worker_engine.models import load_config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INDEX = "model.safetensors.index.json"


def digests(folder: Path) -> Checkpoint:
    return Checkpoint(
        {path.name: (path.stat().st_size, sha256_of(path)) for path in checkpoint_files(folder)}
    )


def merged_into(model: Path, adapter: Path, target: Path) -> Path:
    reporter = Reporter(io.StringIO(), (Phase("checkpoint"),))
    merge(model, digests(model), adapter, target, reporter)
    return target


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors that the index names, or all of the only file."""
    if (folder / INDEX).is_file():
        index: Mapping[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
        files = {file: load_file(folder / file) for file in sorted(set(index.values()))}
        assert set(files) == {path.name for path in folder.glob("*.safetensors")}
        assert {name for file in files.values() for name in file} == set(index)
        return {name: files[file][name] for name, file in index.items()}
    return load_file(folder / "model.safetensors")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, so that every tensor is merged in several."""
    monkeypatch.setattr(shards, "BLOCK", 2000)


def check(layout: Layout, dtype: str, tmp_path: Path, shard_bytes: int | None = None) -> Path:
    base = write_base(tmp_path / "base", layout, dtype=dtype, shard_bytes=shard_bytes)
    adapter = write_adapter(base, tmp_path / "adapter", layout)
    target = merged_into(base, adapter, tmp_path / "merged")
    source = {name: tensor.float().numpy() for name, tensor in weights_of(base).items()}
    expected = merged_by_hand(source, adapter, layout)
    found = weights_of(target)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == DTYPES[dtype]
        assert torch.equal(tensor, torch.from_numpy(expected[name]).to(DTYPES[dtype])), name
    changed = [
        name for name, value in expected.items() if name in source and not np.array_equal(value, source[name])
    ]
    assert changed, "the adapter changes nothing"
    return target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_merged_exactly(name: str, dtype: str, tmp_path: Path) -> None:
    target = check(LAYOUTS[name], dtype, tmp_path)
    tied = name == "tokens_of_tied"
    assert load_config(target).tie_word_embeddings is tied
    assert (target / INDEX).exists() is (name == "tied_embedding")


def test_a_sharded_checkpoint_keeps_its_files(tmp_path: Path) -> None:
    target = check(LAYOUTS["linear"], "bfloat16", tmp_path, shard_bytes=60_000)
    base = tmp_path / "base"
    assert {path.name for path in target.iterdir()} == {path.name for path in base.iterdir()}
    assert (target / INDEX).read_bytes() == (base / INDEX).read_bytes()
    assert (target / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_a_sharded_checkpoint_gets_a_head_of_its_own(tmp_path: Path) -> None:
    target = check(LAYOUTS["tied_embedding"], "float16", tmp_path, shard_bytes=60_000)
    index = json.loads((target / INDEX).read_text())
    assert index["weight_map"]["lm_head.weight"] == "model-head.safetensors"
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in weights_of(target).values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_dora_is_within_one_rounding_of_float64(dtype: str, tmp_path: Path) -> None:
    """The norm is computed in float32, so a sum at the middle between two numbers may go either way."""
    base = write_model(tmp_path / "base", seed=1, dtype=dtype)
    wide = write_model(tmp_path / "wide", seed=1)
    adapter = make_adapter(
        wide,
        tmp_path / "adapter",
        seed=2,
        target_modules=["q_proj", "down_proj"],
        r=4,
        lora_alpha=8,
        use_dora=True,
    )
    held = {
        name: tensor.double() for name, tensor in load_file(adapter / "adapter_model.safetensors").items()
    }
    found, source = weights_of(merged_into(base, adapter, tmp_path / "merged")), weights_of(base)
    for name, tensor in found.items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{path}.lora_A.weight" not in held:
            assert torch.equal(tensor, source[name])
            continue
        total = source[name].double() + 2 * held[f"{path}.lora_B.weight"] @ held[f"{path}.lora_A.weight"]
        expected = total * (held[f"{path}.lora_magnitude_vector"] / total.norm(dim=1))[:, None]
        step = torch.finfo(tensor.dtype).eps
        assert ((tensor.double() - expected).abs() <= step * expected.abs() + 1e-7).all(), name
        assert not torch.equal(tensor, source[name])


def test_finished_files_are_kept_by_the_next_call(tmp_path: Path) -> None:
    target = check(LAYOUTS["linear"], "float32", tmp_path, shard_bytes=120_000)
    files = sorted(target.glob("*.safetensors"))
    before = {path.name: path.stat().st_mtime_ns for path in files}
    files[0].unlink()
    content = {path.name: path.read_bytes() for path in files[1:]}
    merged_into(tmp_path / "base", tmp_path / "adapter", target)
    assert {path.name: path.read_bytes() for path in files[1:]} == content
    assert files[0].is_file()
    assert all(path.stat().st_mtime_ns == before[path.name] for path in files[1:])


def test_a_source_that_changes_is_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", LAYOUTS["linear"])
    adapter = write_adapter(base, tmp_path / "adapter", LAYOUTS["linear"])
    known = digests(base)
    other = write_model(tmp_path / "other", seed=8)
    shutil.copy(other / "model.safetensors", base / "model.safetensors")
    with pytest.raises(JobError, match="changed while the job read it") as caught:
        merge(base, known, adapter, tmp_path / "merged", Reporter(io.StringIO(), (Phase("checkpoint"),)))
    assert caught.value.code is Code.SOURCE_CHANGED
    assert not list((tmp_path / "merged").glob("*.safetensors"))


def refusal(base: Path, adapter: Path, tmp_path: Path) -> JobError:
    with pytest.raises(JobError) as caught:
        merged_into(base, adapter, tmp_path / "merged")
    return caught.value


def test_a_bias_without_a_place_is_refused_by_name(tmp_path: Path) -> None:
    layout = LAYOUTS["lora_biases"]
    plain = Layout(layout.config, layout.ranks, layout.scalings, biases="lora")
    base = write_base(tmp_path / "base", plain)
    error = refusal(base, write_adapter(base, tmp_path / "adapter", plain), tmp_path)
    assert error.code is Code.INCOMPATIBLE
    assert "model.layers.0.self_attn.q_proj cannot be merged: the base model has no bias there" in str(error)
    assert "Serve the adapter unmerged" in str(error)


def test_weights_that_overflow_are_refused_by_name(tmp_path: Path) -> None:
    layout = Layout(
        {"r": 4, "lora_alpha": 60_000, "target_modules": ["v_proj"]}, {"v_proj": 4}, {"v_proj": 15_000.0}
    )
    base = write_base(tmp_path / "base", layout, dtype="float16")
    adapter = write_adapter(base, tmp_path / "adapter", layout)
    weights = load_file(adapter / "adapter_model.safetensors")
    from safetensors.torch import save_file

    save_file({name: tensor * 8 for name, tensor in weights.items()}, adapter / "adapter_model.safetensors")
    error = refusal(base, adapter, tmp_path)
    assert error.code is Code.INCOMPATIBLE
    assert "self_attn.v_proj.weight overflows F16 with the adapter merged" in str(error)


def test_an_adapter_of_another_base_is_refused_by_name(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", LAYOUTS["linear"])
    other = write_model(tmp_path / "other", seed=3, hidden_size=96)
    error = refusal(base, write_adapter(other, tmp_path / "adapter", LAYOUTS["linear"]), tmp_path)
    assert error.code is Code.BAD_DATA
    assert "the adapter cannot be merged into this model: tensor base_model.model" in str(error)


def test_an_embedding_adapter_is_refused_since_its_pooling_would_be_lost(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", LAYOUTS["linear"])
    adapter = write_adapter(base, tmp_path / "adapter", LAYOUTS["linear"])
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"task_type": "FEATURE_EXTRACTION"}))
    error = refusal(base, adapter, tmp_path)
    assert error.code is Code.INCOMPATIBLE
    assert "a merged copy would lose its pooling" in str(error)
