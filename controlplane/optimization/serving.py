"""The worker's flags and environment for serving a variant that a job made."""

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
    """Flags and environment variables of a worker; paths in `environment` are absolute."""

    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def deployment_environment(self) -> dict[str, str]:
        """Return both as a deployment's environment, with flags as `FLAG` variables."""
        found = dict(self.environment)
        for name, value in zip(self.flags[::2], self.flags[1::2], strict=True):
            found[FLAG + name.removeprefix("--").upper().replace("-", "_")] = value
        return found


def served_how(variant: Variant, folder: Path | None) -> Served:
    """Return the flags and environment that the variant's job recorded; empty if no job made it.

    Args:
        folder: the checkpoint's folder on this host; None if there is none, which leaves out all paths.
    """
    job: OptimizationJob | None = getattr(variant, "optimization", None)
    serve: Mapping[str, Any] = ((job.result if job else None) or {}).get("serve", {})
    environment = {}
    for name, value in serve.get("environment", {}).items():
        path = folder.parent / value if folder is not None else None
        if path is not None and path.is_dir() and _OWN.fullmatch(name):
            environment[name] = str(path)
    return Served([str(flag) for flag in serve.get("flags", [])], environment)
