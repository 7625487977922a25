"""Whether this host has room for a work now: disk, memory, and a processor or accelerators of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controlplane.optimization.models import Machine
from controlplane.optimization.workspace import FileLock, HeldError, host_lock, root

_HEADROOM: Final = 1 << 30
"""Bytes beside the weights, of disk and of memory: a process with torch loaded, logs, a tokenizer."""
WEIGHTS_ON_DISK: Final = 2.0
"""Times the weights' bytes: what is finished so far, and the output."""
WEIGHTS_IN_MEMORY: Final = 2.5
"""Times the weights' bytes: them, a layer's in float32 with its calibration, and the output's."""
_LOOK_AGAIN_S: Final = 15.0
_CGROUPS: Final = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""A container's own limit and use, in control groups of version 2 and 1."""


class NoRoomYetError(Exception):
    """It may fit later, or on another host."""

    def __init__(self, reason: str, *, seconds: float = _LOOK_AGAIN_S) -> None:
        super().__init__(reason)
        self.seconds = seconds


class NeverFitsError(Exception):
    """It does not fit on this host even when nothing else is there."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a work takes.

    Attributes:
        disk, memory: bytes; memory is the devices' where the machine is a GPU, else the host's.
        devices: accelerators.
        capability: compute capability times ten that they must have; 0 for any.
    """

    machine: str
    disk: int
    memory: int
    devices: int = 1
    capability: int = 0

    @classmethod
    def of(cls, machine: str, weights: int, *, devices: int = 1, capability: int = 0) -> Needs:
        """By the bytes of all checkpoints that it loads."""
        return cls(
            machine, int(weights * WEIGHTS_ON_DISK) + _HEADROOM, int(weights * WEIGHTS_IN_MEMORY) + _HEADROOM,
            devices, capability,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seat:
    """The right to a host's processors or to some of its GPUs, as long as a descriptor of it is open."""

    locks: tuple[FileLock, ...]
    environment: Mapping[str, str]

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(lock.fd for lock in self.locks)

    def close(self) -> None:
        for lock in self.locks:
            lock.close()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One of nvidia-smi's lines; bytes of memory."""

    index: int
    free: int
    total: int
    capability: int


def seat_take(needs: Needs) -> Seat:
    """One work at a time computes on a host's CPU, and one on each GPU: what is measured is not disturbed.

    Raises:
        NoRoomYetError: others have what it needs.
        NeverFitsError: the host is too small.
    """
    _check_disk(needs.disk)
    if needs.machine == Machine.CPU:
        _check_memory(needs.memory)
        try:
            return Seat((host_lock("cpu"),), {"CUDA_VISIBLE_DEVICES": ""})
        except HeldError:
            raise NoRoomYetError("another work is on this host's CPU: it is next when that ends") from None
    return _gpus_take(needs, gpus())


def _gpus_take(needs: Needs, found: list[Gpu]) -> Seat:
    if not found:
        raise NoRoomYetError(
            "this host has no GPU that nvidia-smi tells of: have a Celery worker take graftwork.optimize.gpu"
            " on one that has"
        )
    fitting = [gpu for gpu in found if not needs.capability or gpu.capability == needs.capability]
    if len(fitting) < needs.devices:
        kinds = ", ".join(sorted({f"{gpu.capability / 10:.1f}" for gpu in found}))
        # One queue is all GPUs': whose host looked first must not decide.
        raise NoRoomYetError(
            f"it needs {needs.devices} GPUs of compute capability {needs.capability / 10:.1f}, and this"
            f" host's {len(found)} are of {kinds}: have a Celery worker take graftwork.optimize.gpu on one"
            " that has them",
            seconds=60.0,
        )
    each = needs.memory // needs.devices
    if sum(gpu.total >= each for gpu in fitting) < needs.devices:
        raise NeverFitsError(
            f"it needs {_gib(each)} GiB on each of {needs.devices} GPUs, and they have"
            f" {_gib(max(gpu.total for gpu in fitting))}"
        )
    locks: list[FileLock] = []
    taken: list[int] = []
    for gpu in fitting:
        if gpu.free >= each and len(taken) < needs.devices:
            with suppress(HeldError):
                locks.append(host_lock(f"gpu-{gpu.index}"))
                taken.append(gpu.index)
    if len(taken) < needs.devices:
        for lock in locks:
            lock.close()
        raise NoRoomYetError(
            f"{needs.devices} of this host's {len(found)} GPUs with {_gib(each)} GiB free are needed, and"
            f" {len(taken)} are: others work on them"
        )
    # nvidia-smi counts by the bus; CUDA by speed, unless it is told.
    told = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, taken))}
    return Seat(tuple(locks), told)


def gpus() -> list[Gpu]:
    """This host's; none where nvidia-smi is not there or does not answer."""
    query = "--query-gpu=index,memory.free,memory.total,compute_cap"
    try:
        told = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return list(_gpu_lines(told.stdout))


def _gpu_lines(text: str) -> Iterator[Gpu]:
    for line in text.splitlines():
        # What shares its memory with the host tells [N/A] of it.
        with suppress(ValueError):
            index, free, total, capability = (part.strip() for part in line.split(","))
            yield Gpu(int(index), int(free) << 20, int(total) << 20, round(float(capability) * 10))


def _check_disk(needed: int) -> None:
    folder = root()
    folder.mkdir(parents=True, exist_ok=True)
    usage = shutil.disk_usage(folder)
    if needed > usage.total:
        raise NeverFitsError(
            f"it needs {_gib(needed)} GiB of disk, and the one of {folder} has {_gib(usage.total)}: set"
            " GRAFTWORK_OPTIMIZATION_DIR to a folder of a larger one"
        )
    if needed > usage.free:
        raise NoRoomYetError(
            f"it needs {_gib(needed)} GiB of disk, and {_gib(usage.free)} are free at {folder}: make room",
            seconds=60.0,
        )


def _check_memory(needed: int) -> None:
    memory = _memory()
    if memory is None:
        return
    available, total = memory
    if needed > total:
        raise NeverFitsError(f"it needs {_gib(needed)} GiB of memory, and this host has {_gib(total)}")
    if needed > available:
        raise NoRoomYetError(
            f"it needs {_gib(needed)} GiB of memory, and {_gib(available)} are free on this host"
        )


def _memory() -> tuple[int, int] | None:
    """Bytes available and in all, a container's limit heeded; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    told = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    available, total = told["MemAvailable"], told["MemTotal"]
    for folder, most, now in _CGROUPS:
        with suppress(OSError, ValueError):
            limit = int((folder / most).read_text())
            used = int((folder / now).read_text()) - _cached(folder / "memory.stat")
            available, total = min(available, max(0, limit - used)), min(total, limit)
    return available, total


def _cached(stat: Path) -> int:
    """Bytes of files that were read, which the kernel gives back when memory is asked for."""
    told = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
    return sum(int(told.get(f"total_{name}", told.get(name, 0))) for name in ("active_file", "inactive_file"))


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
