"""The CPU path of gated activations against the fp64 reference, its arguments, and the kernel's launch keys.

Twice the error of torch's function times up in the same dtype is allowed, and one rounding of the largest.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernels.activation import Kind, gated, gpu, reference
from kernels.activation.triton_kernels import gated_kernel
from tests.kernels.test_specialization import Recorder

SIZES = (1, 6, 42, 123, 431, 2049)
DTYPES = (torch.float32, torch.bfloat16)
KINDS: tuple[Kind, ...] = ("silu", "gelu_tanh", "clamped_swiglu")


def strided(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows inside wider rows, whose rest is NaN; values on both sides of GPT-OSS's limits."""
    wide = torch.full((rows, width + 3), float("nan"), dtype=dtype)
    wide[:, 1:-2] = (torch.randn(rows, width, generator=torch.Generator().manual_seed(width)) * 5).to(dtype)
    return wide[:, 1:-2]


def plain(gate_up: torch.Tensor, kind: Kind, interleaved: bool) -> torch.Tensor:
    """The activation as transformers computes it."""
    gate, up = (gate_up[:, ::2], gate_up[:, 1::2]) if interleaved else gate_up.chunk(2, 1)
    if kind == "silu":
        return functional.silu(gate) * up
    if kind == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


def agrees(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.isfinite().all()
    floor = torch.finfo(ours.dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inter"), [(1, 1), (6, 42), (123, 6), (42, 431), (3, 2049), (2049, 1)])
def test_equals_the_reference(
    rows: int, inter: int, dtype: torch.dtype, kind: Kind, interleaved: bool
) -> None:
    gate_up = strided(rows, 2 * inter, dtype)
    before = gate_up.clone()
    exact = reference.gated(gate_up.double(), kind, interleaved=interleaved)
    theirs = plain(gate_up, kind, interleaved)
    out = torch.full((rows, inter), float("nan"), dtype=dtype)
    assert gated(gate_up, kind, interleaved=interleaved, out=out) is out
    assert torch.equal(gate_up, before)
    agrees(out, theirs, exact)
    assert torch.equal(gated(gate_up, kind, interleaved=interleaved), out)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_the_formula_of_the_field(kind: Kind) -> None:
    gate_up = strided(6, 84, torch.float32).double()
    torch.testing.assert_close(
        reference.gated(gate_up, kind), plain(gate_up, kind, False), rtol=1e-12, atol=1e-12
    )


def test_alpha_and_limit_are_used() -> None:
    gate_up = strided(6, 84, torch.float32)
    exact = reference.gated(gate_up.double(), "clamped_swiglu", alpha=0.5, limit=2.0)
    ours = gated(gate_up, "clamped_swiglu", alpha=0.5, limit=2.0)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("gate_up", "kind", "out", "message"),
    [
        (torch.ones(2, 8), "relu", None, r"kind is 'relu'; expected one of silu, gelu_tanh, clamped_swiglu"),
        (torch.ones(2, 7), "silu", None, r"gate_up has shape \[2, 7\]; expected \[rows, 2 \* inter\]"),
        (torch.ones(8), "silu", None, r"gate_up has shape \[8\]"),
        (torch.ones(2, 8), "silu", torch.ones(2, 8), r"out has shape \[2, 8\], .*; expected \[2, 4\]"),
        (torch.ones(2, 8), "silu", torch.ones(2, 4).half(), r"out has shape \[2, 4\], torch.float16"),
    ],
)
def test_bad_arguments_are_named(
    gate_up: torch.Tensor, kind: Kind, out: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gated(gate_up, kind, out=out)


def test_fifty_lengths_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(gated_kernel)
    monkeypatch.setattr(gpu, "gated_kernel", recorder)
    for rows in range(1, 51):
        gpu.gated(torch.zeros(rows, 3072), "silu")
    assert len(recorder.keys) == 1
