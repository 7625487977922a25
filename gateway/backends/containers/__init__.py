"""Request and answer forms of SageMaker containers other than LMI's, by `SageMakerTarget.container`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.backends.containers.base import ContainerForm
from gateway.backends.containers.pytorch import PyTorchForm
from gateway.backends.containers.tgi import TgiForm
from gateway.backends.containers.triton import TritonForm

FORMS: Final[Mapping[str, ContainerForm]] = {
    "pytorch": PyTorchForm(),
    "tgi": TgiForm(),
    "triton": TritonForm(),
}
