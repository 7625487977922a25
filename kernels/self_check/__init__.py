"""Checks that each op's Triton kernels compile and match their specification at a model's shapes.

The checks run in a separate process, because an invalid read breaks a CUDA context for good, and a kernel
that hangs could not be stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

from kernels.self_check.shapes import ModelShapes

__all__ = ["CHECKS", "ModelShapes", "verify"]

CHECKS: Final[Mapping[str, str]] = {
    "norm": "kernels.self_check.rows:norm",
    "rotary": "kernels.self_check.rows:rotary",
    "activation": "kernels.self_check.rows:activation",
    "quantization": "kernels.self_check.quantization:quantization",
    "lora": "kernels.self_check.lora:lora",
    "attention": "kernels.self_check.attention:attention",
    "lora_graph": "kernels.self_check.lora:lora_graph",
    "attention_graph": "kernels.self_check.attention:attention_graph",
}
"""By op of `kernels.selection`: module and function, which raises if its kernels must not be used."""
LIMIT_S: Final = 300.0
"""Time limit of a process in seconds; with an empty Triton cache, compilation takes most of it."""
ROOT: Final = Path(__file__).resolve().parents[2]


def verify(
    shapes: ModelShapes, device: torch.device, checks: Mapping[str, str] = CHECKS, *, limit_s: float = LIMIT_S
) -> dict[str, str]:
    """Run the checks. A crash counts against the check that was running, and the others continue.

    Returns:
        By op: "" if it passed, else the problem.
    """
    found: dict[str, str] = {}
    while pending := {op: place for op, place in checks.items() if op not in found}:
        reported, problem = _run(shapes, device, pending, limit_s)
        found |= reported
        missing = [op for op in pending if op not in reported]
        if missing and not any(reported.values()):  # a process that reported a failure ended by itself
            found[missing[0]] = problem
    return found


def _run(
    shapes: ModelShapes, device: torch.device, checks: Mapping[str, str], limit_s: float
) -> tuple[dict[str, str], str]:
    """Run the checks in a process; return their results by op, and how the process ended."""
    task = json.dumps({"shapes": asdict(shapes), "device": str(device), "checks": checks})
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "kernels.self_check", task]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=limit_s)
        output, problem = done.stdout, f"its process ended with {done.returncode}: {_last(done.stderr)}"
    except subprocess.TimeoutExpired as expired:
        output, problem = expired.stdout or b"", f"it did not end within {limit_s:g} s"
    reported: dict[str, str] = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith('{"op"'):
            report = json.loads(line)
            reported[report["op"]] = report["problem"]
    return reported, problem


def _last(stderr: bytes) -> str:
    return next(reversed(stderr.decode(errors="replace").strip().splitlines()), "it said nothing")
