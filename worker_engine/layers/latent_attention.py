"""Multi-head latent attention (DeepSeek-AI, 2024, arXiv:2405.04434) over a paged cache of latent vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from kernels.attention import AttentionPlan
from kernels.attention.buckets import Bucket, buckets
from kernels.lora import LoraPair, Segments
from kernels.transfer import to_device
from worker_engine.checkpoint.latent_config import LatentConfig
from worker_engine.layers.linear import LinearLora, LoraLinear


@dataclass(frozen=True, slots=True)
class _Call:
    """Rows whose attention is computed at once.

    Attributes:
        rows: int64 [rows], of the batch.
        owned: rows of the call, int64, and their adapter's index, of each adapter.
        keys: number of cached tokens that each sequence reads, padding included.
    """

    bucket: Bucket
    rows: torch.Tensor
    owned: tuple[tuple[torch.Tensor, int], ...]
    keys: int


class LatentAttention:
    """Attention of one layer; `kv_b_proj` makes each head's keys and values of the cached latent vectors.

    Few queries over many tokens are computed in the absorbed form: `kv_b_proj` is applied to the queries and
    to the result, and no key or value is made. Both forms give the same result, with adapters too.
    """

    def __init__(self, config: LatentConfig, heads: int, scale: float, kv_b: LoraLinear) -> None:
        """Scores are multiplied with `scale`; the weights of `kv_b` must be dense."""
        self._config, self._heads, self._scale, self._kv_b = config, heads, scale, kv_b
        by_head = kv_b.weight.view(heads, -1, config.rank)
        self._key, self._value = torch.split(by_head, [config.nope_dim, config.value_dim], dim=1)

    def __call__(
        self,
        q: torch.Tensor,
        pages: torch.Tensor,
        plan: AttentionPlan,
        lora: LinearLora | None,
        segments: Segments,
    ) -> torch.Tensor:
        """Attend over the cached tokens, this step's included.

        Args:
            q: [rows, heads, query_dim], the last `rope_dim` elements rotated.
            pages: [1, 1, pages, page_size, cached_dim].
            lora: adapters of `kv_b_proj`.

        Returns:
            [rows, heads * value_dim].
        """
        cached = pages.flatten(0, 3)
        out = q.new_empty(len(q), self._heads, self._config.value_dim)
        for call in _calls(plan, cached, segments):
            bucket = call.bucket
            held = cached[bucket.slots].view(bucket.sequences, -1, cached.shape[1])
            if self.absorbs(len(call.rows) // bucket.sequences, call.keys):
                out[call.rows] = self._absorbed(q[call.rows], held, call, lora)
            else:
                out[call.rows] = self._expanded(q[call.rows], held[0], call, lora)
        return out.flatten(1)

    def absorbs(self, queries: int, keys: int) -> bool:
        """Return True if the absorbed form takes fewer multiplications; single queries always take it."""
        config = self._config
        products = config.rank * (config.nope_dim + config.value_dim)
        absorbed = queries * (products + keys * (config.cached_dim + config.rank))
        expanded = keys * products + queries * keys * (config.query_dim + config.value_dim)
        return queries == 1 or absorbed < expanded

    def _expanded(
        self, q: torch.Tensor, held: torch.Tensor, call: _Call, lora: LinearLora | None
    ) -> torch.Tensor:
        """Map the queries of one sequence to [rows, heads, value_dim]; held is [keys, cached_dim]."""
        config = self._config
        latent, rotated = torch.split(held, [config.rank, config.rope_dim], dim=1)
        segments = Segments.group([call.owned[0][1] if call.owned else -1] * len(held))
        kv = self._kv_b.forward(latent.contiguous(), lora, segments).view(len(held), self._heads, -1)
        key, value = torch.split(kv, [config.nope_dim, config.value_dim], dim=2)
        keys = torch.cat((key, rotated.unsqueeze(1).expand(-1, self._heads, -1)), dim=2)
        # PyTorch's fused attention takes values of the keys' size alone.
        values = pad(value, (0, max(0, config.query_dim - config.value_dim)))
        mixed = self._attend(q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), call)
        return mixed.transpose(0, 1)[..., : config.value_dim]

    def _absorbed(
        self, q: torch.Tensor, held: torch.Tensor, call: _Call, lora: LinearLora | None
    ) -> torch.Tensor:
        """Map the queries to [rows, heads, value_dim]; held is [sequences, keys, cached_dim]."""
        config = self._config
        nope, rotated = torch.split(q, [config.nope_dim, config.rope_dim], dim=2)
        query = torch.cat((self._absorb(nope, call, lora), rotated), dim=2)
        keys = held.unsqueeze(1)
        if len(call.rows) == call.bucket.sequences:
            mixed = self._attend(query.unsqueeze(1), keys, keys, call).squeeze(1)
        else:
            keys = keys.expand(-1, self._heads, -1, -1)
            mixed = self._attend(query.transpose(0, 1).unsqueeze(0), keys, keys, call)[0].transpose(0, 1)
        return self._unfold(mixed[..., : config.rank], call, lora)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, call: _Call
    ) -> torch.Tensor:
        """Attend with the call's mask; the arguments are [.., queries or heads, size]."""
        mask, causal = call.bucket.mask, call.bucket.causal
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, scale=self._scale
        )

    def _absorb(self, nope: torch.Tensor, call: _Call, lora: LinearLora | None) -> torch.Tensor:
        """Map queries [rows, heads, nope_dim] to [rows, heads, rank]: `W_k^T q`, the adapter's W included.

        A bias of the adapter adds the same to all scores of a query, which changes nothing.
        """
        size = self._config.nope_dim
        if lora is not None and lora.gain is not None:
            for rows, adapter in call.owned:
                nope[rows] *= self._by_head(lora.gain[adapter])[:, :size].to(nope.dtype)
        query = torch.bmm(nope.transpose(0, 1), self._key).transpose(0, 1)
        for rows, adapter in call.owned:
            if (pair := _pair(lora, adapter)) is not None:
                b = self._by_head(pair.b)[..., :size]
                query[rows] += torch.einsum("nhd,khd->nhk", nope[rows], b) @ pair.a
        return query

    def _unfold(self, mixed: torch.Tensor, call: _Call, lora: LinearLora | None) -> torch.Tensor:
        """Map weighted latent vectors [rows, heads, rank] to [rows, heads, value_dim]."""
        size = self._config.nope_dim
        out = torch.bmm(mixed.transpose(0, 1), self._value.mT).transpose(0, 1)
        for rows, adapter in call.owned:
            if (pair := _pair(lora, adapter)) is not None:
                b = self._by_head(pair.b)[..., size:]
                out[rows] += torch.einsum("nhk,khd->nhd", mixed[rows] @ pair.a.T, b)
            if lora is not None and lora.gain is not None:
                out[rows] *= self._by_head(lora.gain[adapter])[:, size:].to(out.dtype)
            if lora is not None and lora.bias is not None:
                out[rows] += self._by_head(lora.bias[adapter])[:, size:].to(out.dtype)
        return out

    def _by_head(self, outputs: torch.Tensor) -> torch.Tensor:
        """View the outputs of `kv_b_proj` [..] as [.., heads, nope_dim + value_dim]."""
        return outputs.view(*outputs.shape[:-1], self._heads, -1)


def _pair(lora: LinearLora | None, adapter: int) -> LoraPair | None:
    return None if lora is None or lora.weights is None else lora.weights.pairs[0][adapter]


def _calls(plan: AttentionPlan, cached: torch.Tensor, segments: Segments) -> list[_Call]:
    """Cut the step into calls, once for all layers."""
    key = ("latent", cached.dtype, cached.shape)
    if key not in plan.kept:
        found = buckets(plan, 0, cached.shape[1] * cached.element_size(), cached.dtype)
        plan.kept[key] = [_call(bucket, plan, segments) for bucket in found]
    return cast("list[_Call]", plan.kept[key])


def _call(bucket: Bucket, plan: AttentionPlan, segments: Segments) -> _Call:
    rows = bucket.rows
    if isinstance(rows, slice):
        rows = torch.arange(rows.start, rows.stop, device=plan.device)
    adapters = np.array(segments.adapters)[rows.cpu()]
    owned = tuple(
        (to_device(np.flatnonzero(adapters == adapter), plan.device), int(adapter))
        for adapter in np.unique(adapters[adapters >= 0])
    )
    slots = bucket.slots
    count = slots.stop - slots.start if isinstance(slots, slice) else len(slots)
    return _Call(bucket, rows, owned, count // bucket.sequences)
