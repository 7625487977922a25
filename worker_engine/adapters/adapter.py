"""A loaded adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kernels.lora import LoraPair


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Rows of the embedding or the head that an adapter has of its own.

    Attributes:
        weight: [tokens, hidden].
        tokens: int64 [tokens], whose rows they are; None for all.
    """

    weight: torch.Tensor
    tokens: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.tokens is None else self.tokens.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter's weights on the model's device. Paths are PEFT's, without `base_model.model.`.

    Attributes:
        sha256: identity of the content: two adapters with the same one compute the same.
        layers: for each decoder layer, module name -> weights; modules left alone are absent.
        nbytes: memory of all weights.
        tops: LoRA on `model.embed_tokens` (A is [rank, vocabulary]) and on `lm_head`.
        gains: DoRA's magnitude over the norm of the merged columns: path -> float32 [out].
        biases: what is added to a module's output: path -> float32 [out].
        norms: weights in place of a norm's: path -> [hidden].
        rows: rows in place of the embedding's or the head's.
    """

    sha256: str
    layers: tuple[Mapping[str, LoraPair], ...]
    nbytes: int
    tops: Mapping[str, LoraPair] = field(default_factory=dict)
    gains: Mapping[str, torch.Tensor] = field(default_factory=dict)
    biases: Mapping[str, torch.Tensor] = field(default_factory=dict)
    norms: Mapping[str, torch.Tensor] = field(default_factory=dict)
    rows: Mapping[str, OwnRows] = field(default_factory=dict)

    @property
    def pairs_only(self) -> bool:
        """Whether it is nothing but `x A B` in decoder layers: such adapters can be added up."""
        return not (self.tops or self.gains or self.biases or self.norms or self.rows)
