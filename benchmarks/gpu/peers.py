"""vLLM's multi-LoRA Triton ops, beside which ours are timed; none of their code is part of this repository.

They are taken from an installed vllm, or from a folder named by GRAFTWORK_VLLM_OPS that holds only
`vllm/lora/ops/triton_ops/*.py` out of a wheel. What those files import of the rest of vllm is stood in for by
the least that lets them run: configuration at its defaults, platform queries answered by PyTorch.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch

from benchmarks.gpu.lora_inputs import LoraInputs
from benchmarks.gpu.timing import Call

FOLDER: Final = "GRAFTWORK_VLLM_OPS"
OPS: Final = "vllm.lora.ops.triton_ops"


class PeerAbsent(Exception):
    """Neither an installed vllm nor a folder of its ops can be imported; the text says why."""


@dataclass(frozen=True, slots=True)
class VllmOps:
    """Their functions, as `vllm.lora.punica_wrapper.punica_gpu` calls them."""

    source: str
    shrink: Any
    expand: Any
    meta: Any
    pointers: tuple[dict[Any, Any], dict[Any, Any]]
    """Their caches of pointers by data_ptr, which must not outlive the tensors."""

    @classmethod
    def load(cls) -> VllmOps:
        """Raises PeerAbsent."""
        folder = os.environ.get(FOLDER)
        if folder:
            _stand_in(Path(folder))
        try:
            shrink, expand, meta, caches = (
                importlib.import_module(f"{OPS}.{name}")
                for name in ("lora_shrink_op", "lora_expand_op", "lora_kernel_metadata", "utils")
            )
        except (ImportError, AttributeError) as error:
            raise PeerAbsent(
                f"{type(error).__name__}: {error}; see {FOLDER} in docs/gpu-report.md"
            ) from error
        pointers = (caches._LORA_A_PTR_DICT, caches._LORA_B_PTR_DICT)
        source = f"{FOLDER}, default tile sizes" if folder else "installed vllm"
        return cls(source, shrink.lora_shrink, expand.lora_expand, meta.LoRAKernelMeta, pointers)

    def prepare(self, inputs: LoraInputs) -> Any:
        """Their metadata of the batch; `max_loras` is the number of adapters there are, their best case."""
        meta = self.meta.make(len(inputs.pairs[0]), len(inputs.row_adapter), inputs.x.device)
        meta.prepare_tensors(torch.tensor(inputs.row_adapter, dtype=torch.int64, device=inputs.x.device))
        return meta

    def calls(self, sets: Sequence[LoraInputs]) -> list[Call]:
        """Their shrink and expand on each set, in their layout: ranks padded to the largest."""
        for cache in self.pointers:
            cache.clear()
        meta = self.prepare(sets[0])
        return [self._call(one, meta) for one in sets]

    def _call(self, inputs: LoraInputs, meta: Any) -> Call:
        a, b = _stacked(inputs)
        rank, arguments = a[0].shape[1], _arguments(meta, len(inputs.row_adapter))

        def call() -> None:
            shape = (len(a), inputs.x.shape[0], rank)
            shrunk = torch.empty(shape, dtype=torch.float32, device=inputs.x.device)
            self.shrink(inputs.x, a, shrunk, *arguments, 1.0)
            self.expand(shrunk, b, inputs.out, *arguments, offset_start=0, add_inputs=True)

        return call


def _arguments(meta: Any, rows: int) -> tuple[Any, ...]:
    """As their wrapper asks for them: without graphs for each number of active adapters, the default."""
    several = "specialize_active_lora" in inspect.signature(meta.meta_args).parameters
    found: tuple[Any, ...] = meta.meta_args(rows, False) if several else meta.meta_args(rows)
    return found


def _stacked(inputs: LoraInputs) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Their stacks by slice: A [adapters, rank, inner], B [adapters, width, rank]."""
    rank = max(pair.rank for row in inputs.pairs for pair in row if pair is not None)
    a_stacks, b_stacks = [], []
    for row, width in zip(inputs.pairs, inputs.widths, strict=True):
        a = inputs.x.new_zeros(len(row), rank, inputs.x.shape[1])
        b = inputs.x.new_zeros(len(row), width, rank)
        for index, pair in enumerate(row):
            if pair is not None:
                a[index, : pair.rank] = pair.a
                b[index, :, : pair.rank] = pair.b.T
        a_stacks.append(a)
        b_stacks.append(b)
    return a_stacks, b_stacks


def _stand_in(folder: Path) -> None:
    """Puts modules under vllm's names before theirs are imported; packages point into `folder`."""
    if OPS in sys.modules:
        return
    ops = folder.joinpath(*OPS.split("."))
    if not ops.is_dir():
        raise PeerAbsent(f"{FOLDER} is {folder}; expected a folder with {'/'.join(OPS.split('.'))}")
    import triton
    import triton.language as tl

    contents: dict[str, dict[str, object]] = {
        "vllm": {"__path__": []},
        "vllm.envs": {
            "VLLM_BATCH_INVARIANT": False,
            "VLLM_LORA_ENABLE_DUAL_STREAM": False,
            "VLLM_LORA_DISABLE_PDL": False,
            "VLLM_TUNED_CONFIG_FOLDER": os.environ.get("VLLM_TUNED_CONFIG_FOLDER"),
        },
        "vllm.logger": {"init_logger": _logger},
        "vllm.platforms": {"current_platform": SimpleNamespace(**_PLATFORM)},
        "vllm.triton_utils": {"tl": tl, "triton": triton, "HAS_TRITON": True},
        "vllm.utils": {"__path__": []},
        "vllm.utils.math_utils": {"next_power_of_2": lambda n: 1 << (n - 1).bit_length()},
        "vllm.utils.torch_utils": {
            "async_tensor_h2d": lambda data, dtype, device: torch.tensor(data, dtype=dtype, device=device),
            # Without a registered operator they call their functions directly.
            "direct_register_custom_op": _unregistered,
        },
        "vllm.lora": {"__path__": []},
        "vllm.lora.ops": {"__path__": []},
        # Its own __init__ would also import the mixture-of-experts ops, and with them much of vllm.
        OPS: {"__path__": [str(ops)]},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def _unregistered(**_: object) -> None:
    raise AttributeError("no operator library here")


_PLATFORM: Final = {
    "is_cuda": lambda: torch.cuda.is_available(),
    "has_device_capability": lambda least: torch.cuda.get_device_capability() >= divmod(least, 10),
}


def _logger(name: str) -> Any:
    log = logging.getLogger(name)
    return SimpleNamespace(warning_once=log.warning, info_once=log.info, warning=log.warning, info=log.info)
