"""Sizes of instance types, as AWS publishes them, and the resources that copies take."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_local.aws_errors import ValidationException


@dataclass(frozen=True, slots=True)
class Size:
    """Resources of an instance; memory is the host's, in MiB."""

    accelerators: float
    cpus: float
    memory_mib: float


Need = Size
"""Resources of one copy: an inference component's ComputeResourceRequirements."""

_GIB: Final = 1024
_ACCELERATED: Final[Mapping[str, tuple[int, int, float]]] = {
    # accelerators, vCPUs, GiB
    "ml.g4dn.xlarge": (1, 4, 16),
    "ml.g4dn.2xlarge": (1, 8, 32),
    "ml.g4dn.4xlarge": (1, 16, 64),
    "ml.g4dn.8xlarge": (1, 32, 128),
    "ml.g4dn.12xlarge": (4, 48, 192),
    "ml.g4dn.16xlarge": (1, 64, 256),
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
    "ml.g6.8xlarge": (1, 32, 128),
    "ml.g6.12xlarge": (4, 48, 192),
    "ml.g6.16xlarge": (1, 64, 256),
    "ml.g6.24xlarge": (4, 96, 384),
    "ml.g6.48xlarge": (8, 192, 768),
    "ml.g6e.xlarge": (1, 4, 32),
    "ml.g6e.2xlarge": (1, 8, 64),
    "ml.g6e.4xlarge": (1, 16, 128),
    "ml.g6e.8xlarge": (1, 32, 256),
    "ml.g6e.12xlarge": (4, 48, 384),
    "ml.g6e.16xlarge": (1, 64, 512),
    "ml.g6e.24xlarge": (4, 96, 768),
    "ml.g6e.48xlarge": (8, 192, 1536),
    "ml.p2.xlarge": (1, 4, 61),
    "ml.p2.8xlarge": (8, 32, 488),
    "ml.p2.16xlarge": (16, 64, 732),
    "ml.p3.2xlarge": (1, 8, 61),
    "ml.p3.8xlarge": (4, 32, 244),
    "ml.p3.16xlarge": (8, 64, 488),
    "ml.p4d.24xlarge": (8, 96, 1152),
    "ml.p4de.24xlarge": (8, 96, 1152),
    "ml.p5.4xlarge": (1, 16, 256),
    "ml.p5.48xlarge": (8, 192, 2048),
    "ml.p5e.48xlarge": (8, 192, 2048),
    "ml.p5en.48xlarge": (8, 192, 2048),
    "ml.p6-b200.48xlarge": (8, 192, 2048),
    "ml.inf1.xlarge": (1, 4, 8),
    "ml.inf1.2xlarge": (1, 8, 16),
    "ml.inf1.6xlarge": (4, 24, 48),
    "ml.inf1.24xlarge": (16, 96, 192),
    "ml.inf2.xlarge": (1, 4, 16),
    "ml.inf2.8xlarge": (1, 32, 128),
    "ml.inf2.24xlarge": (6, 96, 384),
    "ml.inf2.48xlarge": (12, 192, 768),
    "ml.trn1.2xlarge": (1, 8, 32),
    "ml.trn1.32xlarge": (16, 128, 512),
    "ml.trn1n.32xlarge": (16, 128, 512),
    "ml.trn2.48xlarge": (16, 192, 2048),
    "ml.dl1.24xlarge": (8, 96, 768),
}
_ODD: Final[Mapping[str, tuple[int, int, float]]] = {
    # Types without accelerators that differ from their family's ratio.
    "ml.t2.medium": (0, 2, 4),
    "ml.t2.large": (0, 2, 8),
    "ml.t2.xlarge": (0, 4, 16),
    "ml.t2.2xlarge": (0, 8, 32),
    "ml.c4.large": (0, 2, 3.75),
    "ml.c4.xlarge": (0, 4, 7.5),
    "ml.c4.2xlarge": (0, 8, 15),
    "ml.c4.4xlarge": (0, 16, 30),
    "ml.c4.8xlarge": (0, 36, 60),
}
_GIB_PER_CPU: Final = {"c": 2, "m": 4, "r": 8}
_CPUS: Final = {"medium": 1, "large": 2, "xlarge": 4}
_REGULAR: Final = re.compile(r"ml\.([cmr])\d[a-z]*\.(?:(medium|large|xlarge)|(\d+)xlarge)")


def size(name: str, further: Mapping[str, Mapping[str, float]]) -> Size:
    """Return a type's size. Raises ValidationException if neither `further` nor AWS's tables have it."""
    if name in further:
        return Size(**further[name])
    if (known := _ACCELERATED.get(name) or _ODD.get(name)) is not None:
        accelerators, cpus, memory = known
        return Size(accelerators, cpus, memory * _GIB)
    if (match := _REGULAR.fullmatch(name)) is None:
        raise ValidationException(
            f"The local SageMaker does not know the size of {name}: "
            "name it under instance_types in its configuration"
        )
    family, word, number = match.groups()
    cpus = _CPUS[word] if word else 4 * int(number)
    return Size(0, cpus, cpus * _GIB_PER_CPU[family] * _GIB)


def need(requirements: Mapping[str, Any]) -> Need:
    """Parse ComputeResourceRequirements; without a number of CPU cores a copy shares what is left."""
    return Need(
        requirements.get("NumberOfAcceleratorDevicesRequired", 0.0),
        requirements.get("NumberOfCpuCoresRequired", 0.0),
        requirements.get("MinMemoryRequiredInMb", 0.0),
    )


@dataclass(slots=True, eq=False)
class Instance:
    """One instance of a variant with its placed copies; `coming` resolves once it runs (None: it runs)."""

    size: Size
    kind: str = ""
    held: list[tuple[str, Need]] = field(default_factory=list)
    coming: asyncio.Future[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.coming is None or self.coming.done()

    def fits(self, wanted: Need) -> bool:
        return all(
            sum(getattr(taken, name) for _, taken in self.held) + getattr(wanted, name)
            <= getattr(self.size, name)
            for name in ("accelerators", "cpus", "memory_mib")
        )
