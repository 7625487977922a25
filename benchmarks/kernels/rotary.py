"""Rotation of queries and keys on CPU beside three other ways.

`fresh` makes a new tensor and copies it back; `transformers` is its apply_rotary_pos_emb on queries and keys
that lie apart. `complex` is one complex product (bf16 by way of fp32) on pairs that lie side by side: it
needs the rows of the query and key weights, and of every adapter's B, in another order, so it computes
another thing; the others compute the same, which is checked before they are timed in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import torch

from benchmarks.figure import Figure
from benchmarks.race import race_figures
from kernels.rotary import rotate_

HEADS: Final = {"smollm2-135m": (9, 3, 64), "llama-3.1-8b": (32, 8, 128)}
"""(heads, kv heads, head_dim)."""
DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROWS: Final = (1, 8, 32, 128, 512)
GOAL: Final = {"fresh": 0.95, "transformers": 0.95, "complex": None}


def run() -> Iterator[Figure]:
    """Yields microseconds a call, each beside every other way's."""
    for (model, shape), (name, dtype), rows in product(HEADS.items(), DTYPES.items(), ROWS):
        case = Case(rows, *shape, dtype)
        case.check()
        metric, note = f"{model}_{name}_{rows}_rows", "heads {}, kv heads {}, head_dim {}".format(*shape)
        yield from race_figures(
            "kernels.rotary", metric, case.contenders, goals=GOAL, note=note, reset=case.reset
        )


class Case:
    """One packed qkv and its angles; every contender turns the query and key heads."""

    def __init__(self, rows: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(rows)
        self._drawn = torch.randn(rows, heads + 2 * kv_heads, head_dim, generator=draw).to(dtype)
        self._qkv = self._drawn.clone()
        self._half, self._heads, self._turned = head_dim // 2, heads, heads + kv_heads
        theta = torch.rand(rows, 1, self._half, generator=draw) * 7
        cos, sin = theta.cos(), theta.sin()
        self._cos, self._sin = torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
        self._unsigned = torch.cat((sin, sin), -1).to(dtype)
        self._angles = torch.polar(torch.ones_like(theta), theta)
        self.contenders: dict[str, Callable[[], object]] = {
            "ours": self._ours,
            "fresh": self._fresh,
            "transformers": self._transformers(),
            "complex": self._complex,
        }

    def reset(self) -> None:
        """Angles in bf16 do not keep lengths exactly: thousands of turns would leave the range of numbers."""
        self._qkv.copy_(self._drawn)

    def check(self) -> None:
        """Raises RuntimeError when a contender computes something else than the first."""
        results = []
        for name in ("ours", "fresh", "transformers"):
            self.reset()
            made: Any = self.contenders[name]()
            if made is None:
                results.append(self._qkv[:, : self._turned].to(torch.float32, copy=True))
            else:
                results.append(torch.cat([each[0].transpose(0, 1) for each in made], 1).float())
            step = 4 * torch.finfo(self._qkv.dtype).eps
            if not torch.allclose(results[-1], results[0], rtol=step, atol=4 * step):
                raise RuntimeError(f"{name} computes something else")

    def _ours(self) -> None:
        rotate_(self._qkv[:, : self._turned], self._cos, self._sin)

    def _fresh(self) -> None:
        x = self._qkv[:, : self._turned]
        self._qkv[:, : self._turned] = torch.addcmul(x * self._cos, torch.roll(x, self._half, -1), self._sin)

    def _transformers(self) -> Callable[[], object]:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        heads = self._drawn[:, : self._heads], self._drawn[:, self._heads : self._turned]
        q, k = (part.contiguous().unsqueeze(0).transpose(1, 2) for part in heads)
        cos, sin = self._cos.transpose(0, 1), self._unsigned.transpose(0, 1)
        return lambda: apply_rotary_pos_emb(q, k, cos, sin)

    def _complex(self) -> None:
        x = self._qkv[:, : self._turned]
        wide = x.float()
        pairs = wide.view(*x.shape[:2], self._half, 2)
        torch.view_as_complex(pairs).mul_(self._angles)
        if wide is not x:
            x.copy_(wide)
