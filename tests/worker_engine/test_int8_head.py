"""The head in 8 bits: stored as it was, rounded at load, one arithmetic for every row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels import native
from tests.worker_engine.forward_pass import load
from tests.worker_engine.quantized_case import write_quantized
from tests.worker_engine.tiny_model import write_model
from worker_engine.errors import CheckpointError
from worker_engine.models import head, load_config, load_model, pack_weights
from worker_engine.models.head import rounded_head

needed = pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
CPU: Final = torch.device("cpu")
SIZES: Final = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
LENGTHS: Final = (40, 7, 1)
HEAD: Final = "lm_head.weight"


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def tied(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def written(folder: Path, *, tied: bool) -> Path:
    """A plain checkpoint."""
    return write_model(folder, seed=9, dtype="bfloat16", tie_word_embeddings=tied, **SIZES)


def quantized(plain: Path, tmp_path: Path) -> tuple[Path, Path]:
    """With layers and head of 8 bits; and a plain checkpoint in fp32 of what they mean, never tied."""
    folder, whole = tmp_path / "quantized", tmp_path / "whole"
    write_quantized(plain, folder, whole, "int8")
    _configure(folder, graftwork={"head": "int8"})
    tensors = load_file(whole / "model.safetensors")
    source = tensors.get(HEAD, tensors["model.embed_tokens.weight"])
    rounded = rounded_head(source).dequantize()
    assert 0 < (rounded - source.float()).abs().max() <= source.float().abs().max() / 250
    save_file(tensors | {HEAD: rounded}, whole / "model.safetensors", metadata={"format": "pt"})
    _configure(whole, tie_word_embeddings=False)
    return folder, whole


def _configure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_it_is_rounded_in_slices_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(100, 64, dtype=torch.bfloat16)
    at_once = rounded_head(weight)
    monkeypatch.setattr(head, "_SLICE", 7)
    assert torch.equal(rounded_head(weight).codes, at_once.codes)
    assert torch.equal(rounded_head(weight).scales, at_once.scales)


@needed
def test_a_row_does_not_depend_on_the_batch(tied: bool, tmp_path: Path) -> None:
    """Drawn tokens, verified guesses and prompts' log probabilities come of steps of any height."""
    folder, _ = quantized(written(tmp_path / "plain", tied=tied), tmp_path)
    model, _ = load(folder, torch.bfloat16)
    assert model._head.packed.matrix is not None
    assert model._head.packed.matrix.bits == 8
    x = torch.randn(300, SIZES["hidden_size"], dtype=torch.bfloat16)
    together = model.predict(x, None)
    for rows in (1, 2, 7, 64):
        assert torch.equal(model.predict(x[:rows], None), together[:rows])


@needed
def test_packed_once_and_mapped_after(tied: bool, tmp_path: Path) -> None:
    folder, _ = quantized(written(tmp_path / "plain", tied=tied), tmp_path)
    config, cache = load_config(folder), tmp_path / "packed"

    def loaded(packed_in: Path | None) -> tuple[torch.Tensor, torch.Tensor]:
        model = load_model(
            folder, config, max_model_len=64, dtype=torch.bfloat16, device=CPU, packed_in=packed_in
        )
        matrix = model._head.packed.matrix
        assert matrix is not None
        assert matrix.scales is not None
        return matrix.codes, matrix.scales

    own, first, again = loaded(None), loaded(cache), loaded(cache)
    assert torch.equal(own[0], first[0])
    assert torch.equal(own[0], again[0])
    assert torch.equal(own[1], again[1])
    (file,) = cache.iterdir()
    assert {f"{HEAD}.codes", f"{HEAD}.scales"} <= set(load_file(file))
    assert HEAD not in load_file(file)
    carried = tmp_path / "carried"
    pack_weights(folder, carried)
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    model = load_model(copy, config, max_model_len=64, dtype=torch.bfloat16, device=CPU, packed_in=carried)
    assert model._head.packed.matrix is not None
    assert torch.equal(model._head.packed.matrix.codes, own[0])


@needed
def test_weights_packed_before_the_head_was_rounded_are_not_taken(tmp_path: Path) -> None:
    folder, _ = quantized(written(tmp_path / "plain", tied=True), tmp_path)
    cache = tmp_path / "packed"
    found = []
    for own in ({}, {"head": "int8"}, {}):
        _configure(folder, graftwork=own)
        model = load_model(
            folder, load_config(folder), max_model_len=64, dtype=torch.bfloat16, device=CPU, packed_in=cache
        )
        assert model._head.packed.matrix is not None
        found.append(model._head.packed.matrix.bits)
    assert found == [16, 8, 16]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graftwork": {"head": "int4"}}, "graftwork: head 'int4' is not served, only 'int8'"),
        ({"graftwork": {"tail": "int8"}}, "graftwork: tail is not served; expected only head"),
        ({"graftwork": "int8"}, "graftwork must be an object"),
        (
            {"graftwork": {"head": "int8"}, "quantization_config": None},
            "graftwork has head 'int8', which goes with a quantization_config alone",
        ),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder, _ = quantized(written(tmp_path / "plain", tied=True), tmp_path)
    _configure(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_config(folder)
