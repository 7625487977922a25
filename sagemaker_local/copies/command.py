"""Translates a container's image to the command of a local process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_FLAGS: Final = (
    "--model {model} --served-model-name {name} --host 127.0.0.1 --port {port} "
    "--adapters-dir {adapters} --adapter-cache-dir {cache}"
)
WORKER: Final = (sys.executable, "-m", "worker_engine", "serve", *_FLAGS.split())
"""Command of the bundled worker, which every unconfigured image runs. Its other settings are in the
container's environment, as at SageMaker."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Specification of a copy's container.

    Attributes:
        artifact: `s3://` of an archive or a prefix, "" for none.
        environment: from the model or the component.
    """

    image: str
    artifact: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_id(self) -> str:
        """Folder of this host, or `s3://` prefix, with the weights; "" if the artifact has them."""
        return self.environment.get("OPTION_MODEL_ID") or self.environment.get("HF_MODEL_ID", "")


@dataclass(frozen=True, slots=True)
class CopyFolders:
    """A copy's folders."""

    model: Path
    adapters: Path
    cache: Path


def command(
    spec: ContainerSpec, folders: CopyFolders, *, name: str, port: int, images: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Return the command of the longest matching key of `images`, by default the bundled worker's."""
    fitting = sorted((key for key in images if spec.image.startswith(key)), key=len)
    template = images[fitting[-1]] if fitting else WORKER
    served = spec.environment.get("OPTION_SERVED_MODEL_NAME", name)
    values = {
        "model": str(folders.model),
        "adapters": str(folders.adapters),
        "cache": str(folders.cache),
        "name": served,
        "port": str(port),
    }
    return [word.format_map(values) for word in template]
