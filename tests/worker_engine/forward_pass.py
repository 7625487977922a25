"""Compute a checkpoint's hidden states and logits with the worker's model alone: no scheduler, no sampling.

tests/parity proves that they are those of transformers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from kernels.lora import Segments
from tests.worker_engine.tiny_adapter import adapter_ref, write_merged
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.config import PAGE_SIZE
from worker_engine.layers.attention import AttentionPlan, KVCache
from worker_engine.models import FAMILIES, load_config
from worker_engine.models.decoder import Batch, Decoder

SIZES: Final[dict[str, Any]] = {
    "vocab_size": 256,
    "hidden_size": 60,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 255,
    "bos_token_id": 254,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
WINDOW: Final = 21
LENGTHS: Final = (75, 22, 1, 40)
"""Two of the sequences outgrow the window, by more than a page."""
CPU: Final = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Decoder, KVCache]:
    """Return the model and an empty cache for it."""
    config = load_config(folder)
    with Checkpoint(folder, dtype=dtype, device=CPU, quantization=config.quantization) as checkpoint:
        family = FAMILIES[config.architecture]
        model = family(config, checkpoint, max_model_len=512, dtype=dtype, device=CPU)
    return model, KVCache(config, 64, dtype=dtype, device=CPU)


def load_adapter(model: Path, folder: Path, cache: Path) -> Adapter:
    """Return the adapter as the worker loads it for the checkpoint `model`."""
    loader = AdapterLoader(model, cache, max_bytes=1 << 30, dtype=torch.float32, device=CPU)
    return loader.load(adapter_ref(folder))


def draw(lengths: Sequence[int], vocab: int = 250) -> list[list[int]]:
    """Return random prompts of these lengths, the same ones every time."""
    source = random.Random(1)
    return [[source.randrange(vocab) for _ in range(length)] for length in lengths]


def prompts_for(names: list[str | None], vocab: int) -> dict[str | None, list[int]]:
    """Return a random prompt for each adapter, None for the base model, of rising lengths."""
    source = random.Random(3)
    return {name: [source.randrange(vocab) for _ in range(3 + 9 * i)] for i, name in enumerate(names)}


@torch.inference_mode()
def _steps(
    model: Decoder,
    kv: KVCache,
    prompts: Sequence[Sequence[int]],
    step: int,
    read: Callable[[torch.Tensor], torch.Tensor],
    held: AdapterBatch | None = None,
    owners: Sequence[Adapter | None] = (),
) -> list[torch.Tensor]:
    """Apply `read` to the rows of each forward pass, and gather the results by prompt."""
    indices = [-1] * len(prompts) if held is None else held.select(owners)
    count = max(8, -(-max(map(len, prompts)) // PAGE_SIZE))
    pages = [list(range(1 + count * index, 1 + count * (index + 1)))[::-1] for index in range(len(prompts))]
    made: list[list[torch.Tensor]] = [[] for _ in prompts]
    for start in range(0, max(map(len, prompts)), step):
        parts = [range(start, min(start + step, len(prompt))) for prompt in prompts]
        live = [index for index, part in enumerate(parts) if len(part)]
        plan = AttentionPlan.build(
            [len(parts[index]) for index in live],
            [parts[index].stop for index in live],
            [pages[index] for index in live],
            page_size=PAGE_SIZE,
        )
        rows = [(index, at) for index in live for at in parts[index]]
        segments = Segments.group([indices[index] for index, _ in rows])
        batch = Batch(
            token_ids=torch.tensor([prompts[index][at] for index, at in rows]),
            positions=torch.tensor([at for _, at in rows]),
            attention=plan,
            output_rows=None,
            lora=() if held is None else held.layers,
            segments=segments,
            tops=None if held is None or segments.empty else held.tops(segments, segments),
        )
        for row, (index, _) in zip(read(model.forward(batch, kv)), rows, strict=True):
            made[index].append(row)
    return [torch.stack(rows) for rows in made]


def logits(
    model: Decoder,
    kv: KVCache,
    prompts: Sequence[Sequence[int]],
    step: int,
    held: AdapterBatch | None = None,
    owners: Sequence[Adapter | None] = (),
) -> list[torch.Tensor]:
    """Return [tokens, vocab] of each prompt, all computed side by side.

    Args:
        step: tokens of each prompt that one forward pass takes.
        held: puts the prompts' `owners` side by side; None for the base model alone.
    """
    return _steps(model, kv, prompts, step, lambda hidden: model.predict(hidden, None), held, owners)


@dataclass(frozen=True)
class Forward:
    """One model in fp32: a checkpoint, with an adapter added to its weights or without one."""

    model: Decoder
    cache: KVCache

    @classmethod
    def load(cls, base: Path, adapter: Path | None) -> Forward:
        if adapter is None:
            return cls(*load(base))
        with TemporaryDirectory() as folder:
            return cls(*load(write_merged(base, adapter, Path(folder))))

    def __call__(self, prompt: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the hidden states behind the last norm [tokens, hidden], and the logits [tokens, vocab]."""
        [hidden] = _steps(self.model, self.cache, [prompt], len(prompt), lambda rows: rows)
        with torch.inference_mode():
            return hidden, self.model.predict(hidden, None)
