"""SageMaker's instance types for inference components, as AWS lists them.

As of November 2026; `tests/controlplane/deployments/test_sizing.py` compares the names with botocore's list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Instance:
    """Resources of one machine.

    Attributes:
        memory_gib: host memory.
        accelerators: number of GPUs or Neuron devices; 0 for a machine without.
        accelerator_gib: memory of each of them.
    """

    name: str
    cpus: int
    memory_gib: int
    accelerators: int = 0
    accelerator_gib: int = 0

    @property
    def accelerator(self) -> str:
        """Return the kind of its accelerators, for messages."""
        return "Neuron device" if self.name.startswith(("ml.inf", "ml.trn")) else "GPU"


_NEURON = 32
_A10G, _L4, _L40S, _A100, _A100_80, _H100, _H200 = 24, 24, 48, 40, 80, 80, 141

_ROWS: Final = (
    ("ml.m5.large", 2, 8),
    ("ml.m5.xlarge", 4, 16),
    ("ml.m5.2xlarge", 8, 32),
    ("ml.m5.4xlarge", 16, 64),
    ("ml.c5.xlarge", 4, 8),
    ("ml.c5.2xlarge", 8, 16),
    ("ml.c5.4xlarge", 16, 32),
    ("ml.c7i.xlarge", 4, 8),
    ("ml.c7i.2xlarge", 8, 16),
    ("ml.c7i.4xlarge", 16, 32),
    ("ml.c7i.8xlarge", 32, 64),
    ("ml.g5.xlarge", 4, 16, 1, _A10G),
    ("ml.g5.2xlarge", 8, 32, 1, _A10G),
    ("ml.g5.4xlarge", 16, 64, 1, _A10G),
    ("ml.g5.8xlarge", 32, 128, 1, _A10G),
    ("ml.g5.12xlarge", 48, 192, 4, _A10G),
    ("ml.g5.16xlarge", 64, 256, 1, _A10G),
    ("ml.g5.24xlarge", 96, 384, 4, _A10G),
    ("ml.g5.48xlarge", 192, 768, 8, _A10G),
    ("ml.g6.xlarge", 4, 16, 1, _L4),
    ("ml.g6.2xlarge", 8, 32, 1, _L4),
    ("ml.g6.4xlarge", 16, 64, 1, _L4),
    ("ml.g6.8xlarge", 32, 128, 1, _L4),
    ("ml.g6.12xlarge", 48, 192, 4, _L4),
    ("ml.g6.16xlarge", 64, 256, 1, _L4),
    ("ml.g6.24xlarge", 96, 384, 4, _L4),
    ("ml.g6.48xlarge", 192, 768, 8, _L4),
    ("ml.g6e.xlarge", 4, 32, 1, _L40S),
    ("ml.g6e.2xlarge", 8, 64, 1, _L40S),
    ("ml.g6e.4xlarge", 16, 128, 1, _L40S),
    ("ml.g6e.8xlarge", 32, 256, 1, _L40S),
    ("ml.g6e.12xlarge", 48, 384, 4, _L40S),
    ("ml.g6e.24xlarge", 96, 768, 4, _L40S),
    ("ml.g6e.48xlarge", 192, 1536, 8, _L40S),
    ("ml.p4d.24xlarge", 96, 1152, 8, _A100),
    ("ml.p4de.24xlarge", 96, 1152, 8, _A100_80),
    ("ml.p5.48xlarge", 192, 2048, 8, _H100),
    ("ml.p5e.48xlarge", 192, 2048, 8, _H200),
    ("ml.p5en.48xlarge", 192, 2048, 8, _H200),
    ("ml.inf2.xlarge", 4, 16, 1, _NEURON),
    ("ml.inf2.8xlarge", 32, 128, 1, _NEURON),
    ("ml.inf2.24xlarge", 96, 384, 6, _NEURON),
    ("ml.inf2.48xlarge", 192, 768, 12, _NEURON),
    ("ml.trn1.2xlarge", 8, 32, 1, _NEURON),
    ("ml.trn1.32xlarge", 128, 512, 16, _NEURON),
)

INSTANCES: Final[Mapping[str, Instance]] = MappingProxyType({row[0]: Instance(*row) for row in _ROWS})
