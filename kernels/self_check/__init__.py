"""Whether each op's Triton kernels compile and agree with their specification at a model's shapes.

In a process of its own: a kernel that reads what it must not breaks a CUDA context for good, and one that
waits for ever could not be left.
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
"""By op of `kernels.selection`: module and function, which raises where its kernels are not to be used."""
LIMIT_S: Final = 300.0
"""Seconds for a process; compiling everything takes most of it where nothing is in Triton's cache yet."""
ROOT: Final = Path(__file__).resolve().parents[2]


def verify(
    shapes: ModelShapes,
    device: torch.device,
    checks: Mapping[str, str] = CHECKS,
    *,
    limit_s: float = LIMIT_S,
) -> dict[str, str]:
    """Runs the checks; what breaks its process is the fault of the check that ran, and the rest go on.

    Returns:
        By op: "" where it passed, else what was wrong.
    """
    found: dict[str, str] = {}
    while pending := {op: place for op, place in checks.items() if op not in found}:
        told, problem = _run(shapes, device, pending, limit_s)
        found |= told
        left = [op for op in pending if op not in told]
        if left and not any(told.values()):  # a process that told of a failure ended by itself
            found[left[0]] = problem
    return found


def _run(
    shapes: ModelShapes, device: torch.device, checks: Mapping[str, str], limit_s: float
) -> tuple[dict[str, str], str]:
    """What a process told, op by op, and how it ended."""
    task = json.dumps({"shapes": asdict(shapes), "device": str(device), "checks": checks})
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "kernels.self_check", task]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=limit_s)
        output, problem = done.stdout, f"its process ended with {done.returncode}: {_last(done.stderr)}"
    except subprocess.TimeoutExpired as expired:
        output, problem = expired.stdout or b"", f"it did not end within {limit_s:g} s"
    told: dict[str, str] = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith('{"op"'):
            report = json.loads(line)
            told[report["op"]] = report["problem"]
    return told, problem


def _last(stderr: bytes) -> str:
    return next(reversed(stderr.decode(errors="replace").strip().splitlines()), "it said nothing")
