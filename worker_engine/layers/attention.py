"""The paged KV cache of a model, and attention over it."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch

from kernels.attention import AttentionPlan, attend, native_attention
from kernels.rotary import rotate_
from kernels.transfer import to_device
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.config import PAGE_SIZE
from worker_engine.layers.rotary import Angles

__all__ = ["Attention", "AttentionPlan", "KVCache"]


class KVCache:
    """Keys and values of every layer in pages of `PAGE_SIZE` tokens, as `kernels.attention` reads them:
    [layers, 2 (keys, then values), kv heads, pages, PAGE_SIZE, head_dim]. Latent attention has one kind and
    one head: a token's latent vector, then its rotated key.

    Layer by layer in memory on the CPU, whose kernels take one layer's pages as a whole. Elsewhere page by
    page: then a page is one piece of `memory`, as good for anything else that the engine keeps.

    Attributes:
        memory: [pages, elements of a page], what the keys and values lie in; None where a page is in pieces.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        by_page: bool = False,
    ) -> None:
        kinds, heads, size = config.cache_shape
        of_page = (config.num_layers, kinds, heads, PAGE_SIZE, size)
        self.memory: torch.Tensor | None = None
        if by_page:
            self.memory = torch.zeros((num_pages, math.prod(of_page)), dtype=dtype, device=device)
            self._pages = self.memory.view(num_pages, *of_page).permute(1, 2, 3, 0, 4, 5)
        else:
            shape = (*of_page[:3], num_pages, *of_page[3:])
            self._pages = (
                _untouched(shape, dtype)
                if device.type == "cpu"
                else torch.zeros(shape, dtype=dtype, device=device)
            )
        self._layers = self._pages.unbind(0)

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages that change hands: attention reads none of it, and neither shall a bug."""
        if pages:
            index = to_device(np.array(pages, dtype=np.int64), self._pages.device)
            self._pages.index_fill_(3, index, 0)

    def layer(self, index: int) -> torch.Tensor:
        """One layer's keys and values, as `kernels.attention.attend` takes them."""
        return self._layers[index]

    def write(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
        """Stores [rows, kinds * kv heads (keys first), head_dim] at `slots` int64 [rows]."""
        held = self._layers[layer]
        rows = kv.view(kv.shape[0], *held.shape[:2], held.shape[4])
        if self.memory is None:
            held.view(*held.shape[:2], -1, held.shape[4]).index_copy_(2, slots, rows.permute(1, 2, 0, 3))
        else:
            # Behind the same indices, so that both stand first in the result: [rows, 2, heads, head_dim].
            held.permute(2, 3, 0, 1, 4)[slots // PAGE_SIZE, slots % PAGE_SIZE] = rows


def _untouched(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that the system hands out when they are first written to.

    `torch.zeros` writes them all: 1 GiB took 0.4 to 2 s of a worker's start, and as much memory of every idle
    copy. NumPy's zeros ask for huge pages: the first sequence then takes 2 MiB of each layer and head.
    """
    held = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(held, dtype=dtype).view(*shape)


class Attention:
    """Grouped-query attention of one layer."""

    def __init__(self, scale: float, window: int, sinks: torch.Tensor | None = None) -> None:
        """Scores are multiplied with `scale`; a query sees `window` tokens, itself included, or all if 0.

        Args:
            sinks: float32 [heads], as `kernels.attention.attend` takes them.
        """
        self.scale, self.window, self.sinks = scale, window, sinks

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
        fused = plan.graph is None and cache.memory is None and self.sinks is None
        if fused and native_attention.fits(qkv):
            return native_attention.rotate_store_attend(
                qkv, angles, pages, plan, scale=self.scale, window=self.window
            )
        turned = qkv.shape[1] - pages.shape[1]
        heads = turned - pages.shape[1]
        rotate_(qkv[:, :turned], *angles)
        cache.write(layer, plan.slots, qkv[:, heads:])
        mixed = attend(qkv[:, :heads], pages, plan, scale=self.scale, window=self.window, sinks=self.sinks)
        return mixed.flatten(1)
