"""How a variant that a job made is served: the worker's flags and environment that go with its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from controlplane.catalog.models import Variant
from controlplane.optimization.models import OptimizationJob

FLAG: Final = "GRAFTWORK_WORKER_FLAG_"
"""As `deployments.provisioners.local` turns a deployment's environment into flags."""
_OWN: Final = re.compile(r"GRAFTWORK_WORKER_(?!FLAG_)[A-Z_]+")


@dataclass(frozen=True, slots=True)
class Served:
    """`environment`'s paths are absolute."""

    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def deployment_environment(self) -> dict[str, str]:
        """The same as a deployment's environment says it."""
        found = dict(self.environment)
        for name, value in zip(self.flags[::2], self.flags[1::2], strict=True):
            found[FLAG + name.removeprefix("--").upper().replace("-", "_")] = value
        return found


def served_how(variant: Variant, folder: Path | None) -> Served:
    """What its job said; nothing of a variant that no job made.

    Args:
        folder: of its checkpoint on the host; None where it has none, so that nothing beside it can be named.
    """
    job: OptimizationJob | None = getattr(variant, "optimization", None)
    told: Mapping[str, Any] = ((job.result if job else None) or {}).get("serve", {})
    environment = {}
    for name, value in told.get("environment", {}).items():
        beside = folder.parent / value if folder is not None else None
        if beside is not None and beside.is_dir() and _OWN.fullmatch(name):
            environment[name] = str(beside)
    return Served([str(flag) for flag in told.get("flags", [])], environment)
