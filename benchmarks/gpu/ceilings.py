"""Facts and ceilings of the device: copy bandwidth and matrix rate."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu.task import Bench, Ceilings, Row
from benchmarks.gpu.timing import time_calls
from kernels import tuned
from worker_engine.machine import facts

COPY_BYTES: Final = 4 << 30
"""Read once and written once: 8.6 GB of traffic, 70 times today's largest L2 cache."""
MATMUL_SIZE: Final = 8192
UNKNOWN: Final = Ceilings(float("nan"), float("nan"))


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return the machine's facts; on CUDA the GPU's too."""
    folder = Path(os.environ.get(tuned.VARIABLE) or tuned.FOLDER)
    known: dict[str, Any] = {
        **facts(),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "tuned_files": sorted(path.name for path in folder.glob("*.json")),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        known["gpu"] = {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "capability": list(torch.cuda.get_device_capability(device)),
            "driver": _driver(),
            "cuda": torch.version.cuda,
        }
    return known


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip()


def measure(bench: Bench) -> Row:
    """Measure both ceilings on random data, and record the versions that affect them."""
    device = bench.device
    copied = 16 << 20 if bench.quick else COPY_BYTES
    source = torch.randn(copied // 2, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    [copy] = time_calls([[lambda: target.copy_(source)]], device, rounds=20)
    size = 256 if bench.quick else MATMUL_SIZE
    a, b = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    [matmul] = time_calls([[lambda: torch.mm(a, b, out=out)]], device, rounds=20)
    return {
        "machine": device_facts(device),
        "bandwidth": 2 * copied / copy.median_us * 1e6,
        "matmul": 2 * size**3 / matmul.median_us * 1e6,
        "copy_bytes": 2 * copied,
        "copy_us": copy.to_json(),
        "matmul_size": size,
        "matmul_us": matmul.to_json(),
    }
