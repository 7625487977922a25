"""Generates adapters with different weights from one of the demo's."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from contracts.adapters.reference import ADAPTER_FILES, AdapterRef, adapter_digest, engine_name

RANK: Final = 8
SOURCE: Final = Path(__file__).resolve().parents[2] / "demo" / "adapters" / "strict-json"
"""Rank 8 on q, k, v and o, which every contender supports."""
_SPREAD: Final = 0.1
"""Each weight is multiplied by 1 + this times a normal draw: different numbers, still a working adapter."""


@dataclass(frozen=True, slots=True)
class BenchAdapter:
    """A PEFT folder and the worker's reference to it."""

    folder: Path
    ref: AdapterRef


def make_adapters(folder: Path, count: int) -> list[BenchAdapter]:
    """Write `count` adapters under `folder`, in bf16 like the model, the same ones on every call."""
    weights = load_file(SOURCE / ADAPTER_FILES[1])
    return [_make(folder / f"adapter-{index}", weights, index) for index in range(count)]


def _make(folder: Path, weights: dict[str, torch.Tensor], index: int) -> BenchAdapter:
    folder.mkdir(parents=True)
    shutil.copy(SOURCE / ADAPTER_FILES[0], folder)
    generator = torch.Generator().manual_seed(index)
    spread = {
        name: (tensor.float() * (1 + _SPREAD * torch.randn(tensor.shape, generator=generator))).bfloat16()
        for name, tensor in weights.items()
    }
    save_file(spread, folder / ADAPTER_FILES[1], metadata={"format": "pt"})
    return BenchAdapter(folder, ref_of(folder, rank=RANK))


def ref_of(folder: Path, *, rank: int) -> AdapterRef:
    """Return the reference by which the worker loads the adapter in `folder`."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ADAPTER_FILES}
    digest = adapter_digest(sums)
    name = engine_name(tenant="bench", adapter=folder.name, version=1, sha256=digest)
    return AdapterRef(name, folder.as_uri(), digest, rank)
