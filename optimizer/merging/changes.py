"""The tensors of a checkpoint that a merged adapter changes, computed in blocks of rows.

Linear modules and the head: W + s B A. The embedding, whose A is [rank, vocabulary]: W + (s B A)^T.
DoRA multiplies the sum by the magnitude over its norm (Liu et al., 2024, arXiv:2402.09353).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from contracts.adapters.tensors import EMBEDDING, HEAD
from contracts.recipes.progress import Code, JobError
from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter, OwnRows
from worker_engine.adapters.base_weights import BaseWeights
from worker_engine.checkpoint.model_config import MODULE_PATHS

_EMBEDDING_WEIGHT: Final = f"{EMBEDDING}.weight"
_HEAD_WEIGHT: Final = f"{HEAD}.weight"


@dataclass(frozen=True, slots=True)
class TensorChange:
    """How a merged adapter changes one tensor [rows, ...]. Weights are float32.

    Attributes:
        pair: LoRA to add; the scaling is folded into its B.
        embeds: True for the embedding, whose rows are columns of A rather than of B.
        gain: DoRA's factor: [rows], or [columns] of the embedding.
        own: rows that replace the base's; `own.tokens` None replaces all of them.
        added: [rows], added to a bias.
        replaced: [rows], replaces a norm.
    """

    pair: LoraPair | None = None
    embeds: bool = False
    gain: torch.Tensor | None = None
    own: OwnRows | None = None
    added: torch.Tensor | None = None
    replaced: torch.Tensor | None = None

    def merged(self, block: torch.Tensor, first: int) -> torch.Tensor:
        """Return the merged rows, computed in float32 (float64 for a float64 tensor) and rounded once.

        Args:
            block: [n, ...], rows `first` to `first + n` of the base's tensor, in the checkpoint's dtype.
        """
        last = first + len(block)
        wide = block.to(torch.float64 if block.dtype is torch.float64 else torch.float32, copy=True)
        if self.replaced is not None:
            wide.copy_(self.replaced[first:last])
        if self.added is not None:
            wide.add_(self.added[first:last])
        if self.own is not None:
            _replace_rows(wide, self.own, first)
        if self.pair is not None:
            left, right = (self.pair.a, self.pair.b) if self.embeds else (self.pair.b, self.pair.a)
            wide.addmm_(left[:, first:last].T.to(wide.dtype), right.to(wide.dtype))
        if self.gain is not None:
            wide.mul_(self.gain if self.embeds else self.gain[first:last, None])
        return wide.to(block.dtype)


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of a merged checkpoint.

    Attributes:
        by_tensor: change by tensor name in the checkpoint.
        unties: True if the output needs a head of its own, because the adapter changes the embedding and the
            head of a base that shares one tensor differently.
        head, embedding: tensor names of the head and the embedding in the checkpoint.
    """

    by_tensor: Mapping[str, TensorChange]
    unties: bool
    head: str
    embedding: str

    @classmethod
    def collect(cls, adapter: Adapter, base: BaseWeights, prefix: str) -> Changes:
        """Collect the changes of an adapter that was loaded in float32.

        Args:
            prefix: what the family's checkpoints prepend to tensor names.

        Raises:
            JobError: incompatible, naming a module that cannot be merged, and the remedy.
        """
        found = dict(_changes(adapter, base))
        for name in found:
            if name not in base.shapes:
                path, _, kind = name.rpartition(".")
                raise _not_mergeable(path, f"the base model has no {kind} there")
        head, embedding = found.pop(_HEAD_WEIGHT, None), found.pop(_EMBEDDING_WEIGHT, None)
        shared = _shares_rows(adapter) and base.tied
        unties = base.tied and not shared and (head is not None or embedding is not None)
        if embedding is not None:
            found[_EMBEDDING_WEIGHT] = embedding
        if head is not None or unties or (shared and embedding is not None):
            found[_HEAD_WEIGHT] = head or TensorChange()
        return cls(
            {f"{prefix}{name}": change for name, change in found.items()},
            unties,
            f"{prefix}{_HEAD_WEIGHT}",
            f"{prefix}{_EMBEDDING_WEIGHT}",
        )


def _changes(adapter: Adapter, base: BaseWeights) -> Iterator[tuple[str, TensorChange]]:
    for index, layer in enumerate(adapter.layers):
        for module, pair in layer.items():
            path = f"model.layers.{index}.{MODULE_PATHS[module]}"
            yield f"{path}.weight", TensorChange(pair, gain=adapter.gains.get(path))
    for path in adapter.tops:
        if path not in (EMBEDDING, HEAD):
            raise _not_mergeable(path, "only decoder layers' linear modules, embed_tokens and lm_head can be")
    for path in (EMBEDDING, HEAD):
        top, own = adapter.tops.get(path), adapter.rows.get(path)
        if top is not None or own is not None:
            yield f"{path}.weight", TensorChange(top, path == EMBEDDING, adapter.gains.get(path), own)
    for path, bias in adapter.biases.items():
        yield f"{path}.bias", TensorChange(added=bias)
    for path, norm in adapter.norms.items():
        yield f"{path}.weight", TensorChange(replaced=norm)


def _shares_rows(adapter: Adapter) -> bool:
    """Return True if the adapter replaces the same rows of the embedding and the head, and no more there."""
    own = adapter.rows.get(EMBEDDING)
    return own is not None and own is adapter.rows.get(HEAD) and not adapter.tops


def _replace_rows(wide: torch.Tensor, own: OwnRows, first: int) -> None:
    last = first + len(wide)
    if own.tokens is None:
        wide.copy_(own.weight[first:last])
        return
    within = (own.tokens >= first) & (own.tokens < last)
    wide[own.tokens[within] - first] = own.weight[within].to(wide.dtype)


def _not_mergeable(path: str, reason: str) -> JobError:
    return JobError(
        Code.INCOMPATIBLE,
        f"the adapter's change of {path} cannot be merged: {reason}. Serve the adapter unmerged, or train it"
        " without that module",
    )
