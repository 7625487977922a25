"""Attention over a paged KV cache: one batched product for all decode rows, one call per prefill chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from worker_engine.config import PAGE_SIZE, ModelConfig


class KVCache:
    """Keys and values of every layer in pages of `PAGE_SIZE` tokens; page 0 stays zero and pads tables.

    One tensor per layer, [2 * kv heads (keys, then values), pages * PAGE_SIZE, head_dim]: heads first, so
    that pages gathered for a batch are a batched matrix without another copy.
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        heads = 2 * config.num_kv_heads
        self.num_kv_heads, self.dtype = config.num_kv_heads, dtype
        shape = (config.num_layers, heads, num_pages * PAGE_SIZE, config.head_dim)
        self._slots = torch.zeros(shape, dtype=dtype, device=device)
        self._pages = self._slots.view(config.num_layers, heads, num_pages, PAGE_SIZE * config.head_dim)

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages that change hands: a masked position counts 0 x value, and 0 x NaN is NaN."""
        if pages:
            index = torch.tensor(pages, dtype=torch.int64, device=self._pages.device)
            self._pages.index_fill_(2, index, 0)

    def write(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
        """Stores [rows, 2 * kv heads, head_dim] at `slots` int64 [rows]."""
        self._slots[layer].index_copy_(1, slots, kv.transpose(0, 1))

    def gather(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """[2 * kv heads, len(pages), PAGE_SIZE * head_dim] of `pages` int64."""
        return self._pages[layer].index_select(1, pages)


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The rows 0 to `count` - 1 of a batch: one token each, with its context in pages.

    Attributes:
        block_table: int64 [count * width], padded with page 0.
        bias: [kv heads * count, 1, width * PAGE_SIZE]: 0 for context, -inf beyond it.
    """

    count: int
    block_table: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Rows `start` to `stop` of a batch: one sequence's chunk, with its context in pages.

    Attributes:
        length: tokens of context, the chunk included.
        mask: bool [rows, length], None when the chunk is the whole context (plainly causal).
    """

    start: int
    stop: int
    block_table: torch.Tensor
    length: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What attention needs of a batch, worked out once for all layers.

    Attributes:
        slots: int64 [rows], where each row's key and value go.
    """

    slots: torch.Tensor
    decode: DecodeRows | None
    prefill: tuple[PrefillRows, ...]


class Attention:
    """Grouped-query attention of one model."""

    def __init__(self, config: ModelConfig) -> None:
        self._kv_heads = config.num_kv_heads
        self._group = config.num_heads // config.num_kv_heads
        self._dim = config.head_dim
        self._scale = 1 / math.sqrt(config.head_dim)

    def __call__(
        self, cache: KVCache, layer: int, query: torch.Tensor, kv: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        """Writes this step's keys and values, then attends.

        Args:
            query: [rows, heads, head_dim].
            kv: [rows, 2 * kv heads, head_dim], keys first.

        Returns:
            [rows, heads * head_dim].
        """
        cache.write(layer, plan.slots, kv)
        parts = []
        if plan.decode is not None:
            parts.append(self._decode(cache, layer, query[: plan.decode.count], plan.decode))
        parts.extend(
            self._prefill(cache, layer, query[part.start : part.stop], part) for part in plan.prefill
        )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, cache: KVCache, layer: int, query: torch.Tensor, rows: DecodeRows) -> torch.Tensor:
        """One product [kv heads * count, group, dim] x [.., dim, context] for the whole batch.

        `scaled_dot_product_attention` at one query row is 7-14 times slower on CPU.
        """
        heads, count = self._kv_heads, rows.count
        gathered = cache.gather(layer, rows.block_table).view(2, heads * count, -1, self._dim)
        grouped = query.view(count, heads, self._group, self._dim).transpose(0, 1)
        grouped = grouped.reshape(heads * count, self._group, self._dim)
        scores = torch.baddbmm(rows.bias, grouped, gathered[0].mT, alpha=self._scale)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), gathered[1])
        mixed = mixed.view(heads, count, self._group, self._dim).transpose(0, 1)
        return mixed.reshape(count, heads * self._group * self._dim)

    def _prefill(self, cache: KVCache, layer: int, query: torch.Tensor, rows: PrefillRows) -> torch.Tensor:
        heads = self._kv_heads
        gathered = cache.gather(layer, rows.block_table).view(2, 1, heads, -1, self._dim)
        keys, values = gathered[:, :, :, : rows.length]
        mixed = scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=rows.mask,
            is_causal=rows.mask is None,
            scale=self._scale,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).reshape(rows.stop - rows.start, -1)
