"""Translates a container's image to the command of a local process."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_local.copies.family import family_of

_FLAGS: Final = (
    "--model {model} --served-model-name {name} --host 127.0.0.1 --port {port} "
    "--adapters-dir {adapters} --adapter-cache-dir {cache}"
)
WORKER: Final = (sys.executable, "-m", "worker_engine", "serve", *_FLAGS.split())
"""Command of the bundled worker, which unconfigured images without a family run. Its other settings are in
the container's environment, as at SageMaker."""
_FAMILY_FLAGS: Final = "--image {image} --port {port} --adapters-dir {adapters} --cache-dir {cache}"

MODEL_FOLDER: Final = "/opt/ml/model"
"""Where SageMaker stores a model's data in the container."""
_ADDITIONAL_DIR: Final = "/opt/ml/additional-model-data-sources"
_PREFIX: Final = "OPTION_"
_DRAFT_MODEL: Final = "OPTION_SPECULATIVE_DRAFT_MODEL"
"""LMI's setting for a draft model that SageMaker provides; the container finds out its kind."""
_SPECULATIVE_CONFIG: Final = "OPTION_SPECULATIVE_CONFIG"
_WORKERS: Final = (
    "OPTION_MODEL_ID",
    "OPTION_SERVED_MODEL_NAME",
    "OPTION_MAX_ROLLING_BATCH_SIZE",
    "OPTION_MAX_MODEL_LEN",
    "OPTION_MAX_LORAS",
    _SPECULATIVE_CONFIG,
)
"""LMI's settings that the bundled worker serves with any value."""
_DTYPES: Final = ("auto", "bf16", "fp32")
_AWS_IMAGE: Final = re.compile(r"/djl-inference[:@]")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Specification of a copy's container.

    Attributes:
        artifact: `s3://` of an archive or a prefix, "" for none.
        environment: from the model or the component.
        additional: name of a channel -> `s3://` prefix of its files.
    """

    image: str
    artifact: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    additional: Mapping[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """Image family whose own contract and form the container has; "" for LMI's and the worker's."""
        return family_of(self.image)

    @property
    def model_id(self) -> str:
        """Folder of this host, or `s3://` prefix, with the weights; "" if the artifact has them."""
        return self.environment.get("OPTION_MODEL_ID") or self.environment.get("HF_MODEL_ID", "")


@dataclass(frozen=True, slots=True)
class CopyFolders:
    """A copy's folders; `additional` by name of the channel."""

    model: Path
    adapters: Path
    cache: Path
    additional: Mapping[str, Path] = field(default_factory=dict)


def command(
    spec: ContainerSpec, folders: CopyFolders, *, name: str, port: int, images: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Return the command of the longest matching key of `images`, by default the family's or the worker's."""
    fitting = sorted((key for key in images if spec.image.startswith(key)), key=len)
    if not fitting and spec.family:
        return _family_command(spec, folders, port)
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


def _family_command(spec: ContainerSpec, folders: CopyFolders, port: int) -> list[str]:
    """Return the command of `sagemaker_local.containers`, with the container's folders on this host."""
    values = {
        "image": spec.image,
        "port": str(port),
        "adapters": str(folders.adapters),
        "cache": str(folders.cache),
    }
    words = [word.format_map(values) for word in _FAMILY_FLAGS.split()]
    places = {MODEL_FOLDER: folders.model}
    places |= {f"{_ADDITIONAL_DIR}/{name}": folder for name, folder in folders.additional.items()}
    given = [f"--folder={there}={here}" for there, here in places.items()]
    return [sys.executable, "-m", "sagemaker_local.containers", spec.family, *words, *given]


def variables(spec: ContainerSpec, folders: CopyFolders) -> dict[str, str]:
    """Return a container's environment for a process of this host.

    Folders of additional data sources are replaced by those on this host. For AWS's images the bundled worker
    runs, without the settings that it does not have.
    """
    found = dict(spec.environment)
    if spec.family:
        return found
    for channel, folder in folders.additional.items():
        there = f"{_ADDITIONAL_DIR}/{channel}"
        found = {name: value.replace(there, str(folder)) for name, value in found.items()}
    if not _AWS_IMAGE.search(spec.image):
        return found
    if draft := found.get(_DRAFT_MODEL):
        found[_SPECULATIVE_CONFIG] = json.dumps({"method": "draft_model", "model": draft.rstrip("/")})
    return {name: value for name, value in found.items() if _is_workers(name, value)}


def _is_workers(name: str, value: str) -> bool:
    if name == "OPTION_DTYPE":
        return value.lower() in _DTYPES
    return not name.startswith(_PREFIX) or name in _WORKERS
