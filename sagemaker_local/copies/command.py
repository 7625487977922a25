"""How a container's image becomes a process of this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

WORKER: Final = (
    sys.executable, "-m", "worker_engine", "serve", "--model", "{model}", "--served-model-name", "{name}",
    "--host", "127.0.0.1", "--port", "{port}", "--adapters-dir", "{adapters}",
    "--adapter-cache-dir", "{cache}",
)  # fmt: skip
"""Every image that the configuration does not name runs the bundled worker. Its other settings stand in the
container's environment, which it reads as it does at SageMaker."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What a copy is started from.

    Attributes:
        artifact: `s3://` of an archive or a prefix, "" for none.
        environment: as the model or the component gives it.
    """

    image: str
    artifact: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_id(self) -> str:
        """A folder of this host or an `s3://` prefix that holds the weights; "" when the artifact does."""
        return self.environment.get("OPTION_MODEL_ID") or self.environment.get("HF_MODEL_ID", "")


@dataclass(frozen=True, slots=True)
class Places:
    """A copy's folders."""

    model: Path
    adapters: Path
    cache: Path


def command(
    spec: ContainerSpec, places: Places, *, name: str, port: int, images: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """The longest key of `images` that begins the image's name decides; else the bundled worker."""
    fitting = sorted((key for key in images if spec.image.startswith(key)), key=len)
    template = images[fitting[-1]] if fitting else WORKER
    served = spec.environment.get("OPTION_SERVED_MODEL_NAME", name)
    values = {
        "model": str(places.model), "adapters": str(places.adapters), "cache": str(places.cache),
        "name": served, "port": str(port),
    }  # fmt: skip
    return [word.format_map(values) for word in template]
