"""The base model's tensors, for adapters whose weights make sense only beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from contracts.adapters.tensors import EMBEDDING, HEAD, Shape
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.models import FAMILIES, load_config
from worker_engine.models.head import rounded_head


class BaseWeights:
    """A checkpoint by PEFT's paths. Opened for each use: what was read may leave the page cache again.

    Attributes:
        config: of the model.
        shapes: of every tensor, `lm_head.weight` also where it is tied.
        tied: whether the head is the embedding.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        """Raises CheckpointError. `dtype` is what the engine computes in."""
        self.config = load_config(folder)
        self._folder, self._dtype = folder, dtype
        self._prefix = FAMILIES[self.config.architecture].prefix
        with self._open() as checkpoint:
            shapes = {name.removeprefix(self._prefix): shape for name, shape in checkpoint.shapes().items()}
        self.tied = self.config.tie_word_embeddings or f"{HEAD}.weight" not in shapes
        if self.tied:
            shapes[f"{HEAD}.weight"] = shapes[f"{EMBEDDING}.weight"]
        self.shapes: Mapping[str, Shape] = MappingProxyType(shapes)

    def get(self, name: str) -> torch.Tensor:
        """A tensor on the CPU, in the dtype that the engine computes in."""
        if self.tied and name == f"{HEAD}.weight":
            name = f"{EMBEDDING}.weight"
        with self._open() as checkpoint:
            return checkpoint.get(f"{self._prefix}{name}", *self.shapes[name])

    def multiplied(self, name: str) -> torch.Tensor:
        """As `get`, and as its layer multiplies it: a head that is held in 8 bits is rounded to them."""
        weight = self.get(name)
        quantization = self.config.quantization
        if name != f"{HEAD}.weight" or quantization is None or not quantization.int8_head:
            return weight
        return rounded_head(weight).dequantize().to(self._dtype)

    def _open(self) -> Checkpoint:
        return Checkpoint(
            self._folder,
            dtype=self._dtype,
            device=torch.device("cpu"),
            quantization=self.config.quantization,
        )
