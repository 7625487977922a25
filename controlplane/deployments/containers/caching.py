"""Table of the images that SageMaker caches on its instances, as AWS published it in December 2024.

A family is cached from a starting version on, newest maintained versions first. Only AWS's own registries
count: the same image pulled from elsewhere is downloaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from controlplane.deployments.containers.images import ACCOUNTS, DEFAULT_ACCOUNT, Image


@dataclass(frozen=True, slots=True)
class CachedFamily:
    """One row of the table.

    Attributes:
        starting: first version whose images are cached.
        repository, tag: patterns of an image's address; the tag's first group is its version.
        container: tag of the container with the starting version.
    """

    name: str
    starting: str
    repository: str
    tag: str
    container: str


_DJL, _TGI, _PYTORCH = "djl-inference", "huggingface-pytorch-tgi-inference", "pytorch-inference"
_ROWS: Final = (
    ("LMI", "0.29.0", _DJL, r"([0-9.]+)-lmi[0-9.]+-cu[0-9]+", "0.31.0-lmi13.0.0-cu124"),
    ("LMI-TRT", "0.29.0", _DJL, r"([0-9.]+)-tensorrtllm[0-9.]+-cu[0-9]+", "0.29.0-tensorrtllm0.11.0-cu124"),
    ("LMI-Neuron", "0.29.0", _DJL, r"([0-9.]+)-neuronx-sdk[0-9.]+", "0.29.0-neuronx-sdk2.19.1"),
    (
        "TGI-GPU",
        "2.4.0",
        _TGI,
        r"[0-9.]+-tgi([0-9.]+)-gpu-.*",
        "2.4.0-tgi2.4.0-gpu-py311-cu124-ubuntu22.04-v2.0",
    ),
    (
        "TGI-Neuron",
        "2.1.2",
        _TGI,
        r"([0-9.]+)-optimum[0-9.]+-neuronx-.*",
        "2.1.2-optimum0.0.25-neuronx-py310-ubuntu22.04-v1.0",
    ),
    ("Pytorch-GPU", "2.5.1", _PYTORCH, r"([0-9.]+)-gpu-.*", "2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"),
    ("Pytorch-CPU", "2.5.1", _PYTORCH, r"([0-9.]+)-cpu-.*", "2.5.1-cpu-py311-ubuntu22.04-sagemaker"),
    ("Triton", "24.09", "sagemaker-tritonserver", r"([0-9.]+)-py3.*", "24.09-py3"),
)
CACHED: Final = tuple(CachedFamily(*row) for row in _ROWS)
"""AWS's table. For LMI it prints version 0.29.0 beside a container of 0.31.0. AWS's own sample deploys
0.30.0, so the starting version counts."""
_ADDRESS: Final = re.compile(r"([0-9]{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws[a-z.]*/([a-z0-9._-]+):(.+)")


def image_is_cached(name: str, *, family: str = "") -> bool:
    """Return True if SageMaker caches the image on its instances.

    Args:
        name: an image's name in our table, or its address.

    Raises:
        InvalidInputError: `name` is not an image.
    """
    image = Image.from_name(name, family=family)
    return cached_family(image.uri("us-east-1")) is not None


def cached_family(address: str) -> CachedFamily | None:
    """Return the table row that matches an address, or None if its image is downloaded."""
    match = _ADDRESS.fullmatch(address)
    if match is None or match[1] not in {DEFAULT_ACCOUNT, *ACCOUNTS.values()}:
        return None
    for row in CACHED:
        version = re.fullmatch(row.tag, match[3])
        if row.repository == match[2] and version and _number(version[1]) >= _number(row.starting):
            return row
    return None


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.strip(".").split("."))
