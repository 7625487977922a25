"""A loaded adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.lora import LoraPair


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter's weights on the model's device, by decoder layer and module.

    Attributes:
        layers: for each decoder layer, module name -> weights; modules left alone are absent.
        nbytes: memory of all weights.
    """

    sha256: str
    layers: tuple[Mapping[str, LoraPair], ...]
    nbytes: int
