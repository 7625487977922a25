"""Calibration text through a model, one layer at a time: no more than one layer's weights are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from kernels import native
from kernels.lora import Segments
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.config import PAGE_SIZE
from worker_engine.errors import OptimizationError
from worker_engine.layers.attention import AttentionPlan, KVCache
from worker_engine.layers.rotary import Rotary
from worker_engine.models import FAMILIES
from worker_engine.models.decoder import Batch, DecoderLayer
from worker_engine.text.tokenizer import ChatTokenizer

LENGTH: Final = 512
"""Tokens that attend to each other."""
LEAST_TOKENS: Final = 1024
"""Fewer say little of the widest layer's inputs."""
MOST_TOKENS: Final = 8192
"""Time grows with them; AWQ needs few, since it learns a size for each input and no more."""
_SHORTEST: Final = 8
_BATCH_TOKENS: Final = 2048
CPU: Final = torch.device("cpu")


def compute_dtype() -> torch.dtype:
    """bf16 where the native loops multiply it, as the worker that serves the result will."""
    return torch.float32 if native.LIBRARY is None else torch.bfloat16


def sequences_of(texts: Sequence[str], tokenizer: ChatTokenizer, length: int) -> list[list[int]]:
    """Texts as tokens, in pieces of at most `length`.

    Raises:
        OptimizationError: bad_data, where they are too few.
    """
    pieces: list[list[int]] = []
    held = 0
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=True)
        for start in range(0, len(ids), length):
            piece = ids[start : start + length]
            if len(piece) >= _SHORTEST and held < MOST_TOKENS:
                pieces.append(piece)
                held += len(piece)
    if held < LEAST_TOKENS:
        raise OptimizationError(
            "bad_data",
            f"{len(texts)} calibration texts have {held} tokens that can be used, at least {LEAST_TOKENS} "
            "are needed: give more text of the kind that the model will be asked",
        )
    return pieces


class Calibration:
    """Hidden states of all sequences, as the layers so far have left them."""

    def __init__(self, config: ModelConfig, source: Checkpoint, sequences: Sequence[Sequence[int]]) -> None:
        """Embeds the sequences. Raises CheckpointError."""
        self._config, dtype = config, compute_dtype()
        self._family = FAMILIES[config.architecture]
        batches = _batches(sequences)
        longest = max(map(len, sequences))
        self._ropes = list(dict.fromkeys(layer.rope for layer in config.attention))
        self._rotaries = [
            Rotary(rope, config.head_dim, longest, dtype=dtype, device=CPU) for rope in self._ropes
        ]
        pages = 1 + max(sum(-(-len(ids) // PAGE_SIZE) for ids in batch) for batch in batches)
        self._cache = KVCache(config, pages, dtype=dtype, device=CPU)
        self._batches = [_batch(batch) for batch in batches]
        # Only the embedding of a family's model is there: the rest is what is being made.
        model = self._family.__new__(self._family)
        name = f"{self._family.prefix}model.embed_tokens.weight"
        model._embedding = source.get(name, *config.embedding_shape).to(dtype)
        with torch.inference_mode():
            self._states = [model.embed(batch.token_ids, None) for batch in self._batches]

    @torch.inference_mode()
    def run(self, layer: DecoderLayer, index: int, *, keep: bool) -> None:
        """All rows through one layer; with `keep` what comes out is the next one's input."""
        rotary = self._rotaries[self._ropes.index(self._config.attention[index].rope)]
        for place, batch in enumerate(self._batches):
            angles = rotary.angles(batch.positions)
            out = layer(self._states[place].clone(), batch, self._cache, angles)
            if keep:
                self._states[place] = out


def _batches(sequences: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    found: list[list[Sequence[int]]] = [[]]
    for ids in sequences:
        if found[-1] and sum(map(len, found[-1])) + len(ids) > _BATCH_TOKENS:
            found.append([])
        found[-1].append(ids)
    return found


def _batch(sequences: Sequence[Sequence[int]]) -> Batch:
    pages, first = [], 1
    for ids in sequences:
        count = -(-len(ids) // PAGE_SIZE)
        pages.append(list(range(first, first + count)))
        first += count
    lengths = [len(ids) for ids in sequences]
    return Batch(
        token_ids=torch.tensor([token for ids in sequences for token in ids]),
        positions=torch.tensor([place for length in lengths for place in range(length)]),
        attention=AttentionPlan.build(lengths, lengths, pages, page_size=PAGE_SIZE, device=CPU),
        output_rows=None,
        lora=(),
        segments=Segments.group([-1] * sum(lengths), CPU),
    )
