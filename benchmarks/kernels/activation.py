"""SwiGLU on CPU against transformers' two passes over separate tensors, and inside the matrix product.

`transformers` has gate and up in separate tensors, as its two linear layers produce them. `epilogue` times
the whole first half of the feed-forward: one packed product and the activation, against oneDNN products with
the function and the multiplication as epilogues. An adapter's product must be added before the function, so
only batches without adapters could use that. All contenders compute the same, which is checked before they
are timed in alternation. Enough layers rotate that weights come from memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch.nn import functional

from benchmarks.figure import Figure
from benchmarks.race import race_figures
from kernels.activation import gated

SIZES: Final = {"smollm2-135m": (576, 1536), "llama-3.1-8b": (4096, 14336)}
"""(hidden, inter)."""
DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROWS: Final = (1, 8, 32, 128, 512)
PRODUCT_ROWS: Final = {"smollm2-135m": ROWS, "llama-3.1-8b": (1, 8)}
"""Rows for the products; more would take seconds per round in the larger model."""
ROTATED: Final = 100e6
PACK_BATCH_HINT: Final = 8

Variants = dict[str, Callable[[], torch.Tensor]]


def run() -> Iterator[Figure]:
    """Yield microseconds per call, ours against each alternative."""
    for model, (hidden, inter) in SIZES.items():
        for name, dtype in DTYPES.items():
            for rows in ROWS:
                yield from _compare(f"{model}_{name}_{rows}_rows", activations(rows, inter, dtype))
            if torch._C._has_mkldnn:
                products = Products(hidden, inter, dtype)
                for rows in PRODUCT_ROWS[model]:
                    yield from _compare(f"{model}_{name}_{rows}_rows_with_product", products.variants(rows))


def _compare(metric: str, variants: Variants) -> Iterator[Figure]:
    mine, other = variants
    if not torch.allclose(variants[mine]().float(), variants[other]().float(), rtol=0.02, atol=0.02):
        raise RuntimeError(f"{other} computes something else")
    return race_figures("kernels.activation", metric, variants)


def activations(rows: int, inter: int, dtype: torch.dtype) -> Variants:
    """Return the activation alone, by each implementation."""
    gate_up = torch.randn(rows, 2 * inter, generator=torch.Generator().manual_seed(rows)).to(dtype)
    gate, up = (part.contiguous() for part in gate_up.chunk(2, 1))
    return {"ours": lambda: gated(gate_up), "transformers": lambda: functional.silu(gate) * up}


class Products:
    """Gate and up projections of several layers, packed together and packed separately."""

    def __init__(self, hidden: int, inter: int, dtype: torch.dtype) -> None:
        count = max(1, round(ROTATED / (2 * inter * hidden * dtype.itemsize)))
        draw = torch.Generator().manual_seed(inter)
        self._hidden, self._dtype = hidden, dtype
        self._together, self._apart = [], []
        for _ in range(count):
            weight = (torch.randn(2 * inter, hidden, generator=draw) / hidden**0.5).to(dtype)
            self._together.append(_packed(weight))
            self._apart.append(tuple(_packed(half) for half in weight.chunk(2)))

    def variants(self, rows: int) -> Variants:
        """Return the product with activation, in both forms; each call uses the next layer."""
        x = torch.randn(rows, self._hidden, generator=torch.Generator().manual_seed(rows)).to(self._dtype)
        linear = torch.ops.mkldnn._linear_pointwise
        together, apart = itertools.cycle(self._together), itertools.cycle(self._apart)

        def ours() -> torch.Tensor:
            return gated(linear(x, next(together), None, "none", [], ""))

        def epilogue() -> torch.Tensor:
            gate, up = next(apart)
            result: torch.Tensor = linear.binary(x, linear(x, gate, None, "swish", [], ""), up, None, "mul")
            return result

        return {"ours": ours, "epilogue": epilogue}


def _packed(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_BATCH_HINT)
    return packed
