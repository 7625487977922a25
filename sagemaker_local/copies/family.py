"""Recognises an image's family by its repository's name."""

from __future__ import annotations

from typing import Final

_REPOSITORIES: Final = {
    "huggingface-pytorch-tgi-inference": "tgi",
    "text-generation-inference": "tgi",
    "sagemaker-tritonserver": "triton",
    "tritonserver": "triton",
    "pytorch-inference": "pytorch",
    "vllm": "vllm",
}


def family_of(image: str) -> str:
    """Return the family whose contract the local SageMaker checks; "" for all other images."""
    path = image.partition("@")[0].rpartition("/")[2] if "/" in image else image
    return _REPOSITORIES.get(path.partition(":")[0], "")
