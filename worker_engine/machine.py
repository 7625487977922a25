"""Facts of the machine that a result was measured on: enough to compare, nothing that names it."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from kernels.native.build import supported

_LIBRARIES = ("granian", "uvloop", "aiohttp", "orjson", "redis", "torch", "triton", "transformers", "peft")


def facts() -> dict[str, Any]:
    """CPU model, its fastest instructions that the worker uses, cores, memory, kernel, versions and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "instructions": next(iter(supported()), "none"),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: version for name in _LIBRARIES if (version := package_version(name))},
    }


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    """Return the version of an installed package; None where it runs from its sources."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
