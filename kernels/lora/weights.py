"""The LoRA weights of the adapters of one batch, for one linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from kernels.lora.layout import Layout
from kernels.lora.pair import LoraPair, Pairs
from kernels.lora.stack import Stack


@dataclass(frozen=True, slots=True)
class SliceWeights:
    """One slice of a packed linear layer (q of q/k/v, say), its adapters' ranks side by side.

    Attributes:
        columns: the slice's columns of the output.
        ranks: the slice's rows of `LoraWeights.a`, which are `b`'s rows.
        b: [sum of ranks, out of this slice].
        offsets: for each adapter, its (first, last + 1) row of `b`; equal where it has no weights.
    """

    columns: slice
    ranks: slice
    b: torch.Tensor
    offsets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """All adapters of a batch for one linear layer; each device's own arrangement is made on first use.

    Attributes:
        pairs: the weights as they were loaded.
        layout: shared by layers of the same ranks and shape.
        kept: arrangements of the weights, by the name of what derived them.
    """

    pairs: Pairs
    layout: Layout
    kept: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def device(self) -> torch.device:
        return next(pair.a.device for row in self.pairs for pair in row if pair is not None)

    @property
    def a(self) -> torch.Tensor:
        """[sum of ranks over slices and adapters, in], slice-major, nothing padded."""
        if "a" not in self.kept:
            self.kept["a"] = torch.cat([pair.a for row in self.pairs for pair in row if pair is not None])
        return cast(torch.Tensor, self.kept["a"])

    @property
    def slices(self) -> tuple[SliceWeights, ...]:
        """The slices that some adapter changes, nothing padded."""
        if "slices" not in self.kept:
            self.kept["slices"] = tuple(self._slices())
        return cast("tuple[SliceWeights, ...]", self.kept["slices"])

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """One stack per rank class of the layout, for batched products."""
        if "stacks" not in self.kept:
            classes = self.layout.classes
            self.kept["stacks"] = tuple(Stack.of(self.pairs, self.layout, members) for members in classes)
        return cast("tuple[Stack, ...]", self.kept["stacks"])

    def _slices(self) -> list[SliceWeights]:
        slices: list[SliceWeights] = []
        first = 0
        for row, ranks, columns in zip(self.pairs, self.layout.ranks, self.layout.columns, strict=True):
            if total := sum(ranks):
                b = torch.cat([pair.b for pair in row if pair is not None])
                bounds = tuple((sum(ranks[:i]), sum(ranks[: i + 1])) for i in range(len(ranks)))
                slices.append(SliceWeights(columns, slice(first, first + total), b, bounds))
            first += total
        return slices


class Owners:
    """Which adapter owns which ranks: layers of one layout share one object, and thereby a batch's plan."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._layouts: dict[tuple[object, ...], Layout] = {}

    def get(self, pairs: Pairs, widths: Sequence[int]) -> Layout | None:
        """The layout of a layer; None when every rank is 0.

        Raises:
            ValueError: pairs that do not fit each other, the widths or the device.
        """
        ranks = tuple(tuple(pair.rank if pair else 0 for pair in row) for row in pairs)
        if not any(any(row) for row in ranks):
            return None
        first = next(pair for row in pairs for pair in row if pair is not None)
        self._check(pairs, widths, first)
        key = (ranks, tuple(widths), first.a.shape[1], first.a.dtype)
        if key not in self._layouts:
            self._layouts[key] = Layout.of(ranks, widths, first.a.shape[1], first.a.dtype)
        return self._layouts[key]

    def _check(self, pairs: Pairs, widths: Sequence[int], first: LoraPair) -> None:
        inner, dtype = first.a.shape[1], first.a.dtype
        for index, (row, width) in enumerate(zip(pairs, widths, strict=True)):
            for adapter, pair in enumerate(row):
                if pair is None:
                    continue
                for name, tensor, columns in (("a", pair.a, inner), ("b", pair.b, width)):
                    fits = tensor.shape == (pair.rank, columns) and tensor.dtype == dtype
                    if not fits or tensor.device.type != self._device.type:
                        raise ValueError(
                            f"{name} of slice {index}, adapter {adapter} has shape {list(tensor.shape)}, "
                            f"{tensor.dtype} on {tensor.device}; "
                            f"expected [{pair.rank}, {columns}], {dtype} on {self._device}"
                        )


def concatenate(
    pairs: Sequence[Sequence[LoraPair | None]], widths: Sequence[int], owners: Owners
) -> LoraWeights | None:
    """Brings adapters together for one linear layer.

    Args:
        pairs: by slice, then by adapter index; None where the adapter leaves the slice alone.
        widths: output columns of each slice.
        owners: shared among the layers of a batch.

    Returns:
        None when no adapter changes this layer.

    Raises:
        ValueError: pairs that do not fit each other, the widths or the device of `owners`.
    """
    held = tuple(tuple(row) for row in pairs)
    layout = owners.get(held, widths)
    return None if layout is None else LoraWeights(held, layout)
