"""Additional data sources of a container: their names, and their folders in the container."""

from __future__ import annotations

from typing import Final

_FOLDER: Final = "/opt/ml/additional-model-data-sources"
MODEL_FOLDER: Final = "/opt/ml/model"
"""Folder in which SageMaker stores a model's own data."""
DRAFT_CHANNEL: Final = "draft_model"
ADAPTER_CHANNEL: Final = "lora"
WEIGHTS_CHANNEL: Final = "weights"
"""Checkpoint of a family whose model data is something else."""


def channel_folder(channel: str) -> str:
    """Return the folder in which SageMaker stores an additional data source."""
    return f"{_FOLDER}/{channel}"


def adapter_folder(number: int) -> str:
    """Return the folder of an adapter by its number in the data source ADAPTER_CHANNEL."""
    return f"{channel_folder(ADAPTER_CHANNEL)}/{number}"
