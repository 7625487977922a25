"""The paged KV cache of a model, and attention over it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.attention import AttentionPlan, attend
from worker_engine.config import PAGE_SIZE
from worker_engine.model_config import ModelConfig

__all__ = ["Attention", "AttentionPlan", "KVCache"]


class KVCache:
    """Keys and values of every layer in pages of `PAGE_SIZE` tokens, as `kernels.attention` reads them:
    [layers, 2 (keys, then values), kv heads, pages, PAGE_SIZE, head_dim].
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        heads = config.num_kv_heads
        shape = (config.num_layers, 2, heads, num_pages, PAGE_SIZE, config.head_dim)
        self._pages = torch.zeros(shape, dtype=dtype, device=device)
        self._slots = self._pages.view(config.num_layers, 2 * heads, -1, config.head_dim)

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages that change hands: attention reads none of it, and neither shall a bug."""
        if pages:
            index = torch.tensor(pages, dtype=torch.int64, device=self._pages.device)
            self._pages.index_fill_(3, index, 0)

    def write(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Stores [rows, 2 * kv heads (keys first), head_dim] at `slots` int64 [rows]; returns its pages."""
        self._slots[layer].index_copy_(1, slots, kv.transpose(0, 1))
        return self._pages[layer]


class Attention:
    """Grouped-query attention of one layer."""

    def __init__(self, scale: float, window: int) -> None:
        """Scores are multiplied with `scale`; a query sees `window` tokens, itself included, or all if 0."""
        self._scale, self._window = scale, window

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
        pages = cache.write(layer, plan.slots, kv)
        return attend(query, pages, plan, scale=self._scale, window=self._window).flatten(1)
