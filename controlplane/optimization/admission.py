"""Admits a work to this host: checks disk and memory, then locks the CPU or GPUs that it needs."""

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
"""Bytes of disk and of memory beyond the weights: a process with torch loaded, logs, a tokenizer."""
WEIGHTS_ON_DISK: Final = 2.0
"""Multiple of the weights' bytes: the steps finished so far, and the output."""
WEIGHTS_IN_MEMORY: Final = 2.5
"""Multiple of the weights' bytes: the input, one layer in float32 with its calibration, and the output."""
_MERGE_MEMORY: Final = 8 << 30
"""Bytes for an adapter of 2 GB in float32, and for one module's norms in float32 where it is DoRA."""
_LOOK_AGAIN_S: Final = 15.0
_CGROUPS: Final = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""A container's own limit and use, in control groups of version 2 and 1."""


class NoRoomYetError(Exception):
    """This host has no room for the work now; it may fit later, or on another host."""

    def __init__(self, reason: str, *, seconds: float = _LOOK_AGAIN_S) -> None:
        super().__init__(reason)
        self.seconds = seconds


class NeverFitsError(Exception):
    """The work does not fit on this host, even an idle one."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Resources that a work needs.

    Attributes:
        disk, memory: bytes; GPU memory where the machine is a GPU, else host memory.
        devices: number of accelerators.
        capability: required compute capability times ten; 0 for any.
    """

    machine: str
    disk: int
    memory: int
    devices: int = 1
    capability: int = 0

    @classmethod
    def for_machine(cls, machine: str, weights: int, *, devices: int = 1, capability: int = 0) -> Needs:
        """Estimate the needs from `weights`, the bytes of all checkpoints that the work loads."""
        return cls(
            machine,
            int(weights * WEIGHTS_ON_DISK) + _HEADROOM,
            int(weights * WEIGHTS_IN_MEMORY) + _HEADROOM,
            devices,
            capability,
        )

    @classmethod
    def to_merge(cls, machine: str, weights: int) -> Needs:
        """Estimate the needs of merging an adapter into `weights` bytes, which are read block by block."""
        memory = min(int(weights * WEIGHTS_IN_MEMORY), _MERGE_MEMORY) + _HEADROOM
        return cls(machine, int(weights * WEIGHTS_ON_DISK) + _HEADROOM, memory)


@dataclass(frozen=True, slots=True)
class Seat:
    """A lock on the host's CPU or on some of its GPUs, held while one of its descriptors is open."""

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
    """One GPU as nvidia-smi reports it; `free` and `total` are bytes of memory."""

    index: int
    free: int
    total: int
    capability: int


def seat_take(needs: Needs) -> Seat:
    """Lock the CPU or GPUs that `needs` asks for; one work at a time, so that measurements are undisturbed.

    Raises:
        NoRoomYetError: other works hold what it needs.
        NeverFitsError: the host is too small.
    """
    _check_disk(needs.disk)
    if needs.machine == Machine.CPU:
        _check_memory(needs.memory)
        try:
            return Seat((host_lock("cpu"),), {"CUDA_VISIBLE_DEVICES": ""})
        except HeldError:
            raise NoRoomYetError("another job uses this host's CPU: this job starts when it ends") from None
    return _gpus_take(needs, gpus())


def _gpus_take(needs: Needs, found: list[Gpu]) -> Seat:
    if not found:
        raise NoRoomYetError(
            "nvidia-smi reports no GPU on this host: start a Celery worker for the queue"
            " graftwork.optimize.gpu on a GPU host"
        )
    fitting = [gpu for gpu in found if not needs.capability or gpu.capability == needs.capability]
    if len(fitting) < needs.devices:
        kinds = ", ".join(sorted({f"{gpu.capability / 10:.1f}" for gpu in found}))
        # All GPU hosts share one queue, so a host without matching GPUs must leave the work to others.
        raise NoRoomYetError(
            f"the job requires {needs.devices} GPUs of compute capability {needs.capability / 10:.1f}, and"
            f" this host's {len(found)} have {kinds}: start a Celery worker for the queue"
            " graftwork.optimize.gpu on a matching host",
            seconds=60.0,
        )
    each = needs.memory // needs.devices
    if sum(gpu.total >= each for gpu in fitting) < needs.devices:
        raise NeverFitsError(
            f"the job requires {_gib(each)} GiB on each of {needs.devices} GPUs, and they have"
            f" {_gib(max(gpu.total for gpu in fitting))}"
        )
    locks: list[FileLock] = []
    indexes: list[int] = []
    for gpu in fitting:
        if gpu.free >= each and len(indexes) < needs.devices:
            with suppress(HeldError):
                locks.append(host_lock(f"gpu-{gpu.index}"))
                indexes.append(gpu.index)
    if len(indexes) < needs.devices:
        for lock in locks:
            lock.close()
        raise NoRoomYetError(
            f"the job requires {needs.devices} of this host's {len(found)} GPUs with {_gib(each)} GiB free,"
            f" and {len(indexes)} are available: other jobs use the rest"
        )
    # nvidia-smi numbers devices by PCI bus; CUDA by speed unless CUDA_DEVICE_ORDER says otherwise.
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, indexes))}
    return Seat(tuple(locks), environment)


def gpus() -> list[Gpu]:
    """List this host's GPUs; empty where nvidia-smi is missing or fails."""
    query = "--query-gpu=index,memory.free,memory.total,compute_cap"
    try:
        completed = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return list(_gpu_lines(completed.stdout))


def _gpu_lines(text: str) -> Iterator[Gpu]:
    for line in text.splitlines():
        # Devices that share the host's memory report [N/A] for their own: leave them out.
        with suppress(ValueError):
            index, free, total, capability = (part.strip() for part in line.split(","))
            yield Gpu(int(index), int(free) << 20, int(total) << 20, round(float(capability) * 10))


def _check_disk(needed: int) -> None:
    folder = root()
    folder.mkdir(parents=True, exist_ok=True)
    usage = shutil.disk_usage(folder)
    if needed > usage.total:
        raise NeverFitsError(
            f"the job requires {_gib(needed)} GiB of disk, and the disk of {folder} has"
            f" {_gib(usage.total)}: set GRAFTWORK_OPTIMIZATION_DIR to a folder on a larger disk"
        )
    if needed > usage.free:
        raise NoRoomYetError(
            f"the job requires {_gib(needed)} GiB of disk, and {folder} has {_gib(usage.free)} free:"
            " free disk"
            " space",
            seconds=60.0,
        )


def _check_memory(needed: int) -> None:
    memory = _memory()
    if memory is None:
        return
    available, total = memory
    if needed > total:
        raise NeverFitsError(
            f"the job requires {_gib(needed)} GiB of memory, and this host has {_gib(total)}"
        )
    if needed > available:
        raise NoRoomYetError(
            f"the job requires {_gib(needed)} GiB of memory, and this host has {_gib(available)} free"
        )


def _memory() -> tuple[int, int] | None:
    """Return (available, total) bytes within the container's limit, or None where /proc is missing."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    meminfo = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    available, total = meminfo["MemAvailable"], meminfo["MemTotal"]
    for folder, limit_file, usage_file in _CGROUPS:
        with suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())
            used = int((folder / usage_file).read_text()) - _cached(folder / "memory.stat")
            available, total = min(available, max(0, limit - used)), min(total, limit)
    return available, total


def _cached(stat: Path) -> int:
    """Return the bytes of the page cache, which the kernel frees on demand."""
    counters = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
    return sum(
        int(counters.get(f"total_{name}", counters.get(name, 0))) for name in ("active_file", "inactive_file")
    )


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
