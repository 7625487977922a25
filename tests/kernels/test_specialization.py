"""A kernel is compiled once and then serves every batch: no length of a batch is part of its key.

The keys are those that Triton computes at a launch, asked of its binder without a device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from kernels.lora import LoraPair, Owners, Segments, concatenate, gpu
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows

KERNELS = ("shrink_kernel", "expand_kernel", "fused_kernel", "look_up_kernel")


class Recorder:
    """Stands in a kernel's place and keeps the key of every launch."""

    def __init__(self, kernel: Any) -> None:
        backend = make_backend(GPUTarget("cuda", 90, 32))
        self._bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        self.keys: set[str] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert grid[0] > 0
        return self._launch

    def _launch(self, *arguments: Any, **named: Any) -> None:
        _, specialization, options = self._bind(*arguments, **named)
        self.keys.add(str((specialization, sorted(options.items()))))


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorder]:
    found = {name: Recorder(getattr(gpu, name)) for name in KERNELS}
    for name, recorder in found.items():
        monkeypatch.setattr(gpu, name, recorder)
    return found


def rows_of(ranks: list[int]) -> RankRows:
    pairs: list[LoraPair | None] = [LoraPair(torch.zeros(rank, 64), torch.zeros(rank, 256)) for rank in ranks]
    weights = concatenate([pairs], [256], Owners())
    assert weights is not None
    return RankRows.stacked(weights)


@pytest.mark.parametrize("fused", [False, True])
def test_fifty_lengths_have_one_key(recorders: dict[str, Recorder], fused: bool) -> None:
    rows = rows_of([16, 8, 33])
    for length in range(17, 67):
        row_adapter = [0] * length + [1] * (2 * length + 1) + [2] * 17
        x, out = torch.zeros(len(row_adapter), 64), torch.zeros(len(row_adapter), 256)
        gpu.run(out, x, rows, Plan.build(row_adapter, rows), fused=fused)
    assert [len(recorders[name].keys) for name in KERNELS] == ([0, 0, 1, 0] if fused else [1, 1, 0, 0])


@pytest.mark.parametrize("fused", [False, True])
def test_fifty_numbers_of_adapters_have_one_key(recorders: dict[str, Recorder], fused: bool) -> None:
    rows = rows_of([16] * 50)
    for adapters in range(1, 51):
        x, out = torch.zeros(adapters, 64), torch.zeros(adapters, 256)
        gpu.run(out, x, rows, Plan.build(list(range(adapters)), rows), fused=fused)
    assert [len(recorders[name].keys) for name in KERNELS] == ([0, 0, 1, 0] if fused else [1, 1, 0, 0])


def test_fifty_lengths_of_an_embedding_have_one_key(recorders: dict[str, Recorder]) -> None:
    pairs: list[LoraPair | None] = [LoraPair(torch.zeros(8, 99), torch.zeros(8, 64)) for _ in range(3)]
    weights = concatenate([pairs], [64], Owners())
    assert weights is not None
    for length in range(17, 67):
        row_adapter = [0] * length + [1] * (length + 1) + [2] * 17
        token_ids, out = torch.zeros(len(row_adapter), dtype=torch.int64), torch.zeros(len(row_adapter), 64)
        gpu.embed_lora(out, token_ids, weights, Segments.group(row_adapter))
    assert [len(recorders[name].keys) for name in KERNELS] == [0, 1, 0, 1]


def test_layers_of_other_widths_share_a_key(recorders: dict[str, Recorder]) -> None:
    """A kernel reads a layer's width at run time: a new model shape compiles nothing."""
    for inner in (512, 1024, 4096):
        pairs: list[LoraPair | None] = [LoraPair(torch.zeros(8, inner), torch.zeros(8, 1024))]
        weights = concatenate([pairs], [1024], Owners())
        assert weights is not None
        rows = RankRows.stacked(weights)
        gpu.run(torch.zeros(1, 1024), torch.zeros(1, inner), rows, Plan.build([0], rows))
    assert [len(recorders[name].keys) for name in KERNELS] == [1, 1, 0, 0]
