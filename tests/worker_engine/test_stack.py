"""All layers in one native call: the bits of the layers one by one, whatever the family and the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from kernels import native
from kernels.native.stack import Stack
from tests.worker_engine.forward_pass import LENGTHS, SIZES, WINDOW, draw, load, logits
from tests.worker_engine.tiny_model import family_config, random_weights, randomize_vectors, write_checkpoint
from worker_engine.layers.linear import LoraLinear
from worker_engine.layers.linear_weight import pack
from worker_engine.models.decoder import Decoder

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")

CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "biases": ("llama", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    "two-kinds-of-layers": (
        "qwen2",
        {"hidden_size": 192, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "head-norms": ("qwen3", {"head_dim": 64, "attention_bias": True}),
}


@pytest.fixture(params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, changes = CASES[request.param]
    config = family_config(family, **(SIZES | changes))
    weights = random_weights(config, seed=3)
    randomize_vectors(weights, seed=4, scale=0.4, gain=1.0, bias=1.0)
    return write_checkpoint(tmp_path, config, weights)


def one_by_one(model: Decoder) -> Decoder:
    model._stack = None
    return model


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each call of the stack."""
    rows: list[int] = []
    run = Stack.run_

    def counted(self: Stack, x: torch.Tensor, steps: Sequence[int]) -> None:
        rows.append(len(x))
        run(self, x, steps)

    monkeypatch.setattr(Stack, "run_", counted)
    return rows


@pytest.mark.parametrize("step", [1, 13, 128])
def test_the_stack_computes_what_its_layers_do(
    folder: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits and all keys and values, decoding, in chunks and at once."""
    rows, prompts = count_calls(monkeypatch), draw(LENGTHS)
    model, kv = load(folder, torch.bfloat16)
    found = logits(model, kv, prompts, step)
    assert sum(rows) == sum(LENGTHS), "the stack was not asked"
    model, other = load(folder, torch.bfloat16)
    wanted = logits(one_by_one(model), other, prompts, step)
    assert sum(rows) == sum(LENGTHS)
    assert torch.equal(torch.cat(found), torch.cat(wanted))
    assert torch.equal(kv._pages, other._pages)


def test_weights_that_change_places_are_found(folder: Path) -> None:
    """A merged adapter's weights, and the base's when they come back."""
    model, kv = load(folder, torch.bfloat16)
    prompts = draw((30,))
    before = logits(model, kv, prompts, 7)[0]
    linear = model.linears[1]["o"]
    other = LoraLinear(pack(-linear.weight), linear.bias)
    linear.exchange(other)
    changed = logits(model, kv, prompts, 7)[0]
    assert not torch.equal(changed, before)
    twin, twin_kv = load(folder, torch.bfloat16)
    twin.linears[1]["o"].exchange(LoraLinear(pack(-twin.linears[1]["o"].weight), linear.bias))
    assert torch.equal(changed, logits(one_by_one(twin), twin_kv, prompts, 7)[0])
    linear.exchange(other)
    assert torch.equal(logits(model, kv, prompts, 7)[0], before)


def test_another_cache_is_another_stack(folder: Path) -> None:
    model, kv = load(folder, torch.bfloat16)
    first = logits(model, kv, draw((30,)), 7)[0]
    held = kv._pages.clone()
    _, fresh = load(folder, torch.bfloat16)
    assert torch.equal(logits(model, fresh, draw((30,)), 7)[0], first)
    assert torch.equal(logits(model, kv, draw((12,)), 7)[0], first[:12])
    assert torch.equal(fresh._pages, held)


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    """The native code reads at any address that it gets."""
    model, kv = load(folder, torch.bfloat16)
    assert model._stack is not None
    layers = [model._stack._layer(index, part, kv) for index, part in enumerate(model._stack._parts)]
    stack = Stack(layers, heads=6, eps=1e-6)
    hidden = layers[0].input_norm.numel()
    with pytest.raises(ValueError, match="x has shape"):
        stack.run_(torch.zeros(2, hidden - 1, dtype=torch.bfloat16), [0] * stack.kinds)
    with pytest.raises(ValueError, match="x has shape"):
        stack.run_(torch.zeros(2, hidden), [0] * stack.kinds)
    with pytest.raises(ValueError, match="kinds"):
        stack.run_(torch.zeros(2, hidden, dtype=torch.bfloat16), [0] * (stack.kinds + 1))
    gate_up, down = layers[0].gate_up, layers[0].down
    assert gate_up is not None
    assert down is not None
    for name, wrong in (
        ("qkv", replace(layers[0].qkv, codes=layers[0].qkv.codes[1:])),
        ("o", replace(layers[0].o, codes=layers[0].o.codes.float())),
        ("gate_up", replace(gate_up, columns=gate_up.columns - 16)),
        ("down", replace(down, codes=down.codes.transpose(2, 3))),
        ("input_norm", layers[0].input_norm.bfloat16()),
        ("o_bias", torch.zeros(hidden + 1, dtype=torch.bfloat16)),
        ("kv", kv.layer(0)[:, :, :-1]),
    ):
        with pytest.raises(ValueError, match=f"^{name} is"):
            Stack([layers[0], layers[1].__class__(**(_fields(layers[1]) | {name: wrong}))], heads=6, eps=1e-6)


def _fields(layer: Any) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in layer.__slots__}
