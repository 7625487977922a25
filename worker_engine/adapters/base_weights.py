"""The base model's tensors, for adapters whose weights are defined relative to them (DoRA, merged heads)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from contracts.adapters.tensors import EMBEDDING, HEAD, Shape
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.errors import AdapterRefused
from worker_engine.models import FAMILIES, load_config
from worker_engine.models.head import rounded_head


class BaseWeights:
    """Reads a checkpoint's tensors by PEFT path.

    The files are opened for each read, so that the page cache may drop the data afterwards.

    Attributes:
        config: configuration of the base model.
        shapes: shape of every tensor; includes `lm_head.weight` even where it is tied.
        tied: True if the output head shares the embedding's weights.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        """Open the checkpoint. `dtype` is the engine's compute dtype. Raises CheckpointError."""
        self.config = load_config(folder)
        self._folder, self._dtype = folder, dtype
        self._prefix = FAMILIES[self.config.architecture].prefix
        with self._open() as checkpoint:
            shapes = {
                _named(name.removeprefix(self._prefix), shape): shape
                for name, shape in checkpoint.shapes().items()
            }
        self.tied = self.config.tie_word_embeddings or f"{HEAD}.weight" not in shapes
        if self.tied:
            shapes[f"{HEAD}.weight"] = shapes[f"{EMBEDDING}.weight"]
        self.shapes: Mapping[str, Shape] = MappingProxyType(shapes)

    def get(self, name: str) -> torch.Tensor:
        """Return a tensor on the CPU, in the engine's compute dtype."""
        if self.tied and name == f"{HEAD}.weight":
            name = f"{EMBEDDING}.weight"
        with self._open() as checkpoint:
            return checkpoint.get(f"{self._prefix}{name}", *self.shapes[name])

    def shapes_of_experts(self, path: str) -> tuple[int, int, int]:
        """Return (experts, out, in) of a projection of all experts (`model.layers.0.mlp.experts.up_proj`)."""
        experts, hidden = self.config.experts, self.config.hidden_size
        if experts is None:
            raise AdapterRefused(f"{path} has no place: this model has no experts")
        return experts.num_experts, *experts.expert_shapes(hidden)[path.rpartition(".")[2]]

    def multiplied(self, name: str) -> torch.Tensor:
        """Return `get(name)` as its layer multiplies it: an int8 head is rounded to 8 bits."""
        weight = self.get(name)
        quantization = self.config.quantization
        if name != f"{HEAD}.weight" or quantization is None or not quantization.int8_head:
            return weight
        return rounded_head(weight).dequantize().to(self._dtype)

    def _open(self) -> Checkpoint:
        return Checkpoint(
            self._folder, dtype=self._dtype, device=torch.device("cpu"), quantization=self.config.quantization
        )


def _named(name: str, shape: Shape) -> str:
    """Return a tensor's name as adapters are compared with it: stacked experts lack `.weight`."""
    return f"{name}.weight" if len(shape) == 3 and not name.endswith(".weight") else name
