"""Normalisation of rows on CPU beside torch's rms_norm, transformers' LlamaRMSNorm and a trick.

`doubled` is layer_norm, which has a fused kernel, over [x, -x], whose mean is 0. All contenders compute the
same, which is checked before they are timed in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import torch
from torch.nn import functional

from benchmarks.figure import Figure
from benchmarks.race import race_figures
from kernels.norm import rms_norm

HIDDEN: Final = {"smollm2-135m": 576, "llama-3.1-8b": 4096}
DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROWS: Final = (1, 8, 32, 128, 512)
EPS: Final = 1e-5
GOAL: Final = {"torch": 0.9, "transformers": 0.9, "doubled": None}


def run() -> Iterator[Figure]:
    """Yields microseconds a call, each beside every other way's."""
    for (model, hidden), (name, dtype), rows in product(HIDDEN.items(), DTYPES.items(), ROWS):
        metric, note = f"{model}_{name}_{rows}_rows", f"hidden {hidden}"
        yield from race_figures(
            "kernels.norm", metric, contenders(rows, hidden, dtype), goals=GOAL, note=note
        )


def contenders(rows: int, hidden: int, dtype: torch.dtype) -> dict[str, Callable[[], torch.Tensor]]:
    """Each way as a call without arguments. Raises RuntimeError when one computes something else."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, hidden, generator=draw).to(dtype)
    weight = torch.rand(hidden, generator=draw).add_(0.5).to(dtype)
    wide, twice = weight.float(), torch.cat((weight, weight))
    module = LlamaRMSNorm(hidden, EPS)
    module.weight = torch.nn.Parameter(weight, requires_grad=False)

    def doubled() -> torch.Tensor:
        mirrored = torch.cat((x, x.neg()), -1)
        return functional.layer_norm(mirrored, (2 * hidden,), twice, None, EPS)[:, :hidden]

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "ours": lambda: rms_norm(x, wide, EPS),
        "torch": lambda: functional.rms_norm(x, (hidden,), weight, EPS),
        "transformers": lambda: module(x),
        "doubled": doubled,
    }
    results = {name: way().float() for name, way in ways.items()}
    for name, result in results.items():
        if not torch.allclose(result, results["torch"], rtol=4 * torch.finfo(dtype).eps, atol=1e-5):
            raise RuntimeError(f"{name} computes something else than torch")
    return ways
