"""Multi-LoRA of an embedding against its specification."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import torch

from benchmarks.gpu import lora_checks
from benchmarks.gpu.lora_inputs import LoraInputs
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.verdict import DTYPES, implementation, op_module, poisoned
from kernels.lora import Segments, reference

RANKS: Final = (16, 1, 0, 64, 8)
SIZES: Final = ((32000, 4096), (128256, 2049))
"""(vocabulary, hidden)."""
QUICK_SIZES: Final = ((50, 24),)
BATCHES: Final[tuple[tuple[int, ...], ...]] = (
    (4,),
    (3, -1, 0, 2, 4, 1, 0),
    (0,) * 123 + (-1,) * 6 + (3,) * 300 + (1, 4),
)


@dataclass(frozen=True)
class EmbeddingCheck:
    """An embedding, whose input is one-hot: each token's column of A is looked up."""

    vocabulary: int
    hidden: int
    ranks: tuple[int, ...]
    row_adapter: tuple[int, ...]
    dtype: str

    @property
    def key(self) -> str:
        return f"lora.embedding.{self.vocabulary}x{self.hidden}.{len(self.row_adapter)}.{self.dtype}"


def tasks(quick: bool) -> list[Task]:
    """Decode and prefill rows, in every dtype."""
    checks = [
        EmbeddingCheck(*size, (3, 1, 0, 7, 8) if quick else RANKS, rows, dtype)
        for dtype in (("float32",) if quick else DTYPES)
        for size in (QUICK_SIZES if quick else SIZES)
        for rows in (BATCHES[1:2] if quick else BATCHES)
    ]
    return [Task(one.key, {"op": "lora", **asdict(one)}, partial(embed, check=one)) for one in checks]


def embed(bench: Bench, check: EmbeddingCheck) -> Row:
    """On poisoned scratch memory, with tokens anywhere in the vocabulary, its last among them."""
    dtype, device = DTYPES[check.dtype], bench.device
    shape = (check.ranks, (check.hidden,), check.vocabulary, check.row_adapter)
    inputs = LoraInputs.draw(*shape, dtype=dtype, device=device)
    tokens = torch.randint(check.vocabulary, (len(check.row_adapter),), device=device)
    tokens[-1] = check.vocabulary - 1
    result = inputs.out.clone()
    with poisoned():
        segments = Segments.group(check.row_adapter, device)
        op_module("lora", device).embed_lora(result, tokens, inputs.weights, segments)
    exact, plain = (
        reference.embed_lora(
            inputs.out.to(wide), tokens.tolist(), lora_checks.cast_pairs(inputs, wide)[0], check.row_adapter
        )
        for wide in (torch.float64, dtype)
    )
    judged = lora_checks.judge_beside(inputs, result, exact, plain)
    return judged | {"implementation": implementation(device)}
