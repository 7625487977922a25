"""Adapters' changes outside of the decoder layers' linear modules: embedding, head and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from kernels.lora import Segments, apply_lora, embed_lora
from worker_engine.layers.linear import LinearLora
from worker_engine.layers.norm import OwnNorms


class RowsOfTokens(NamedTuple):
    """One adapter's replacement rows of the embedding or the head, and the batch rows that use them.

    Attributes:
        rows: int64, indices of batch rows; for the head, of its logits.
        tokens: int64 [n], token ids; None for all.
        weight: [n, hidden].
    """

    rows: torch.Tensor
    tokens: torch.Tensor | None
    weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class Tops:
    """One step's changes of embedding, head and norms.

    Attributes:
        segments: the batch's rows by adapter.
        logit_segments: the rows that reach the last norm, by adapter; for `predict`, those of its `x`.
        norms: adapters' replacement norms, by path.
    """

    segments: Segments
    logit_segments: Segments
    embedding: LinearLora | None = None
    head: LinearLora | None = None
    embedding_rows: Sequence[RowsOfTokens] = ()
    head_rows: Sequence[RowsOfTokens] = ()
    norms: OwnNorms = field(default_factory=dict)

    def embed(self, x: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Change the base's embedding [rows, hidden] in place."""
        for rows, tokens, weight in self.embedding_rows:
            ids = token_ids[rows]
            if tokens is None:
                x[rows] = weight[ids]
                continue
            same = ids.unsqueeze(1) == tokens
            hit = same.any(1)
            x[rows[hit]] = weight[same[hit].int().argmax(1)]
        if self.embedding is not None and self.embedding.weights is not None:
            embed_lora(x, token_ids, self.embedding.weights, self.segments)
            if self.embedding.gain is not None:
                owner = self.segments.row_adapter
                rows = (owner >= 0).nonzero().squeeze(1)
                x[rows] = (x[rows].float() * self.embedding.gain[owner[rows]]).to(x.dtype)

    def predict(self, logits: torch.Tensor, x: torch.Tensor) -> None:
        """Change the base's logits [logit rows, vocabulary] of x [logit rows, hidden] in place."""
        for rows, tokens, weight in self.head_rows:
            own = x[rows] @ weight.T
            if tokens is None:
                logits[rows] = own
            else:
                logits[rows.unsqueeze(1), tokens] = own
        if self.head is not None and self.head.weights is not None and not self.logit_segments.empty:
            apply_lora(logits, x, self.head.weights, self.logit_segments, gain=self.head.gain)


def rows_of(segments: Segments, adapter: int) -> torch.Tensor:
    """Return the indices, int64, of one adapter's rows."""
    return (segments.row_adapter == adapter).nonzero().squeeze(1)


def own_norms(
    norms: Mapping[int, Mapping[str, torch.Tensor]], segments: Segments, logit_segments: Segments, last: str
) -> OwnNorms:
    """Group the adapters' norms by path. The norm of path `last` sees only the rows that reach the head.

    Args:
        norms: by adapter index, then path.
    """
    found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for adapter, by_path in norms.items():
        rows, logit_rows = rows_of(segments, adapter), rows_of(logit_segments, adapter)
        for path, weight in by_path.items():
            found.setdefault(path, []).append((logit_rows if path == last else rows, weight))
    return found
