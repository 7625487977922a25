"""Checkpoints by source: a folder, an S3 prefix, a hub's repository."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from controlplane.catalog.checkpoint_sources.base import CheckpointSource
from controlplane.catalog.checkpoint_sources.bucket import BucketCheckpoint
from controlplane.catalog.checkpoint_sources.folder import FolderCheckpoint
from controlplane.catalog.checkpoint_sources.hub import HubCheckpoint

__all__ = ["CheckpointSource", "checkpoint_source"]


def checkpoint_source(text: str | Path) -> CheckpointSource:
    """Return the source of a text, which need not exist. Raises InvalidInputError."""
    if isinstance(text, Path) or text.startswith("/"):
        return FolderCheckpoint(Path(text))
    parts = urlsplit(text.strip())
    match parts.scheme:
        case "s3":
            return BucketCheckpoint(parts)
        case "hf":
            return HubCheckpoint(parts)
        case _:
            return FolderCheckpoint(Path(text))
