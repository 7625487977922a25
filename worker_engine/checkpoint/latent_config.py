"""The shape of multi-head latent attention (DeepSeek), and the names of its modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LATENT_PATHS: Final[Mapping[str, str]] = {
    "q_a_proj": "self_attn.q_a_proj",
    "q_b_proj": "self_attn.q_b_proj",
    "kv_a_proj_with_mqa": "self_attn.kv_a_proj_with_mqa",
    "kv_b_proj": "self_attn.kv_b_proj",
}
"""Linear modules of latent attention beside `q_proj` and `o_proj`, and their paths within the layer."""


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Latent attention: keys and values of all heads are made of one latent vector a token.

    Attributes:
        query_rank: size of the queries' latent vector; 0 if queries are projected at once.
        rank: size of the latent vector of keys and values.
        nope_dim: of each head's query and key, the part that is not rotated.
        rope_dim: the rotated part, whose key all heads share.
        value_dim: of each head's value.
        interleaved: True if the rotated pairs are neighbours in the checkpoint's rows.
    """

    query_rank: int
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool = True

    @property
    def query_dim(self) -> int:
        """Size of each head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        """Elements that the cache stores for a token: the latent vector, then the rotated key."""
        return self.rank + self.rope_dim

    def module_shapes(self, hidden: int, heads: int) -> dict[str, tuple[int, int]]:
        """Return (out, in) of the attention's linear modules."""
        queries = heads * self.query_dim
        shapes = {
            "kv_a_proj_with_mqa": (self.cached_dim, hidden),
            "kv_b_proj": (heads * (self.nope_dim + self.value_dim), self.rank),
            "o_proj": (hidden, heads * self.value_dim),
        }
        if not self.query_rank:
            return {"q_proj": (queries, hidden), **shapes}
        return {"q_a_proj": (self.query_rank, hidden), "q_b_proj": (queries, self.query_rank), **shapes}

    @property
    def packed_modules(self) -> dict[str, tuple[str, ...]]:
        """Linear layers as computed, and the modules whose rows each stacks."""
        queries: dict[str, tuple[str, ...]] = {"q_a": ("q_a_proj",), "q_b": ("q_b_proj",)}
        return {
            **(queries if self.query_rank else {"q": ("q_proj",)}),
            "kv_a": ("kv_a_proj_with_mqa",),
            "kv_b": ("kv_b_proj",),
            "o": ("o_proj",),
        }
