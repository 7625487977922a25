"""Checks that an instance's driver runs a container's CUDA; SageMaker's default host image has CUDA 12.2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_CUDA_13: Final = re.compile(r"/(?:djl-inference|vllm):(.*-cu13|server-sagemaker-cuda-v2)")
_NEW_ENOUGH: Final = "al2023-ami-sagemaker-inference-gpu-4-1"
"""With driver 580; the others have 470 to 550, of CUDA 11.4 to 12.4."""


def driver_problem(image: str, variant: Mapping[str, Any], kind: str) -> str:
    """Return why the container would not start on a variant's instances of a type; "" if it would."""
    if not _CUDA_13.search(image) or not kind.startswith(("ml.g", "ml.p")):
        return ""
    if variant.get("InferenceAmiVersion") == _NEW_ENOUGH:
        return ""
    return (
        "The container ended at its start: RuntimeError: The NVIDIA driver on your system is too old (found "
        "version 12020). Set InferenceAmiVersion of the production variant, as CUDA 13 needs"
    )
