"""The paged KV cache of a model, and attention over it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.attention import AttentionPlan, attend, decode
from kernels.rotary import rotate_
from worker_engine.config import PAGE_SIZE
from worker_engine.layers.rotary import Angles
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
        self._layers = self._pages.unbind(0)
        self._slots = self._pages.view(config.num_layers, 2 * heads, -1, config.head_dim)

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages that change hands: attention reads none of it, and neither shall a bug."""
        if pages:
            index = torch.tensor(pages, dtype=torch.int64, device=self._pages.device)
            self._pages.index_fill_(3, index, 0)

    def layer(self, index: int) -> torch.Tensor:
        """One layer's keys and values, as `kernels.attention.attend` takes them."""
        return self._layers[index]

    def write(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
        """Stores [rows, 2 * kv heads (keys first), head_dim] at `slots` int64 [rows]."""
        self._slots[layer].index_copy_(1, slots, kv.transpose(0, 1))


class Attention:
    """Grouped-query attention of one layer."""

    def __init__(self, scale: float, window: int) -> None:
        """Scores are multiplied with `scale`; a query sees `window` tokens, itself included, or all if 0."""
        self._scale, self._window = scale, window

    def __call__(
        self, cache: KVCache, layer: int, qkv: torch.Tensor, angles: Angles, plan: AttentionPlan
    ) -> torch.Tensor:
        """Turns queries and keys, in place, writes this step's keys and values, then attends.

        Args:
            qkv: [rows, heads + 2 * kv heads, head_dim], contiguous.

        Returns:
            [rows, heads * head_dim].
        """
        pages = cache.layer(layer)
        if decode.decodes(plan, qkv):
            return decode.rotate_store_attend(
                qkv, angles, pages, plan, scale=self._scale, window=self._window
            )
        turned = qkv.shape[1] - pages.shape[1]
        heads = turned - pages.shape[1]
        rotate_(qkv[:, :turned], *angles)
        cache.write(layer, plan.slots, qkv[:, heads:])
        return attend(qkv[:, :heads], pages, plan, scale=self._scale, window=self._window).flatten(1)
