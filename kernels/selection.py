"""Selects the ops that run Triton kernels, per kind of device; the others run PyTorch's operations.

GRAFTWORK_WORKER_TRITON selects the mode: `auto` (the default) follows `kernels.self_check`, `1` turns all
kernels on for CUDA without a check, `0` turns all off.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, Literal, cast, get_args

import torch

Op = Literal[
    "norm", "rotary", "activation", "quantization", "lora", "attention", "lora_graph", "attention_graph"
]
OPS: Final[tuple[Op, ...]] = get_args(Op)
"""The last two are the launches of captured steps, whose arguments do not depend on the batch. `quantization`
must be selected before a model is loaded, because its weights are laid out for the kernels.
"""

Mode = Literal["auto", "1", "0"]

_running: frozenset[tuple[Op, str]] = frozenset()


def mode() -> Mode:
    """Return the configured mode. Raises ValueError for an invalid value."""
    value = os.environ.get("GRAFTWORK_WORKER_TRITON", "auto")
    if value not in get_args(Mode):
        raise ValueError(f"GRAFTWORK_WORKER_TRITON is {value!r}; expected auto, 1 or 0")
    return cast(Mode, value)


def runs(op: Op, tensor: torch.Tensor) -> bool:
    """Return True if the op's Triton kernels run on this tensor."""
    return bool(_running) and (op, tensor.device.type) in _running


def runs_on(op: Op, device: torch.device) -> bool:
    """Return True if the op's Triton kernels run on this kind of device."""
    return (op, device.type) in _running


def select(ops: Iterable[Op], device: torch.device) -> None:
    """Run exactly these ops' kernels on this kind of device from now on, in this process."""
    global _running
    others = {pair for pair in _running if pair[1] != device.type}
    _running = frozenset(others | {(op, device.type) for op in ops})


if mode() == "1":
    select(OPS, torch.device("cuda"))
