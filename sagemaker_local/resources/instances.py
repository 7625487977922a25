"""Sizes of instance types, as AWS publishes them, and what a copy takes of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_local.aws.errors import ValidationException


@dataclass(frozen=True, slots=True)
class Size:
    """What an instance has. Memory in MiB, of the host."""

    accelerators: float
    cpus: float
    memory_mib: float


Need = Size
"""What one copy takes: an inference component's ComputeResourceRequirements."""

_GIB: Final = 1024
_SIZES: Final[Mapping[str, tuple[int, int, int]]] = {
    # accelerators, vCPUs, GiB
    "ml.g4dn.xlarge": (1, 4, 16),
    "ml.g4dn.2xlarge": (1, 8, 32),
    "ml.g4dn.12xlarge": (4, 48, 192),
    "ml.g5.xlarge": (1, 4, 16),
    "ml.g5.2xlarge": (1, 8, 32),
    "ml.g5.4xlarge": (1, 16, 64),
    "ml.g5.8xlarge": (1, 32, 128),
    "ml.g5.12xlarge": (4, 48, 192),
    "ml.g5.16xlarge": (1, 64, 256),
    "ml.g5.24xlarge": (4, 96, 384),
    "ml.g5.48xlarge": (8, 192, 768),
    "ml.g6.xlarge": (1, 4, 16),
    "ml.g6.2xlarge": (1, 8, 32),
    "ml.g6.4xlarge": (1, 16, 64),
    "ml.g6.12xlarge": (4, 48, 192),
    "ml.g6.24xlarge": (4, 96, 384),
    "ml.g6.48xlarge": (8, 192, 768),
    "ml.g6e.xlarge": (1, 4, 32),
    "ml.g6e.2xlarge": (1, 8, 64),
    "ml.g6e.12xlarge": (4, 48, 384),
    "ml.g6e.48xlarge": (8, 192, 1536),
    "ml.p4d.24xlarge": (8, 96, 1152),
    "ml.p4de.24xlarge": (8, 96, 1152),
    "ml.p5.48xlarge": (8, 192, 2048),
    "ml.p5e.48xlarge": (8, 192, 2048),
    "ml.p5en.48xlarge": (8, 192, 2048),
    "ml.inf2.xlarge": (1, 4, 16),
    "ml.inf2.48xlarge": (12, 192, 768),
    "ml.trn1.32xlarge": (16, 128, 512),
    "ml.m5.large": (0, 2, 8),
    "ml.m5.xlarge": (0, 4, 16),
    "ml.m5.2xlarge": (0, 8, 32),
    "ml.m5.4xlarge": (0, 16, 64),
    "ml.c5.xlarge": (0, 4, 8),
    "ml.c5.2xlarge": (0, 8, 16),
    "ml.c5.9xlarge": (0, 36, 72),
    "ml.c6i.2xlarge": (0, 8, 16),
    "ml.c7i.4xlarge": (0, 16, 32),
    "ml.m6i.2xlarge": (0, 8, 32),
    "ml.m7i.4xlarge": (0, 16, 64),
}


def size(name: str, further: Mapping[str, Mapping[str, float]]) -> Size:
    """Raises ValidationException for a type that neither the table nor `further` has."""
    if name in further:
        return Size(**further[name])
    if name not in _SIZES:
        raise ValidationException(
            f"The local SageMaker does not know the size of {name}: "
            "name it under instance_types in its configuration"
        )
    accelerators, cpus, memory = _SIZES[name]
    return Size(accelerators, cpus, memory * _GIB)


def need(requirements: Mapping[str, Any]) -> Need:
    """ComputeResourceRequirements; without a number of CPU cores a copy takes what is left."""
    return Need(
        requirements.get("NumberOfAcceleratorDevicesRequired", 0.0),
        requirements.get("NumberOfCpuCoresRequired", 0.0),
        requirements.get("MinMemoryRequiredInMb", 0.0),
    )


@dataclass(slots=True, eq=False)
class Instance:
    """One machine of a variant, and what is placed on it; `coming` ends when it is there (None: it is)."""

    size: Size
    held: list[tuple[str, Need]] = field(default_factory=list)
    coming: asyncio.Future[None] | None = None

    @property
    def is_there(self) -> bool:
        return self.coming is None or self.coming.done()

    def fits(self, wanted: Need) -> bool:
        return all(
            sum(getattr(taken, name) for _, taken in self.held) + getattr(wanted, name)
            <= getattr(self.size, name)
            for name in ("accelerators", "cpus", "memory_mib")
        )
