"""Checkpoints by source: a folder, an S3 prefix, a hub's repository."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from controlplane.catalog.checkpoint_sources.base import CheckpointSource
from controlplane.catalog.checkpoint_sources.bucket import BucketCheckpoint
from controlplane.catalog.checkpoint_sources.folder import FolderCheckpoint
from controlplane.catalog.checkpoint_sources.hub import HubCheckpoint

__all__ = ["CheckpointSource", "checkpoint_source"]


def checkpoint_source(text: str | Path, *, hub_token: str = "") -> CheckpointSource:
    """Return the source of a text, which need not exist.

    Args:
        hub_token: for a repository of a hub; "" uses that of a base model of the repository, if there is one.

    Raises:
        InvalidInputError: the text is malformed.
    """
    if isinstance(text, Path) or text.startswith("/"):
        return FolderCheckpoint(Path(text))
    parts = urlsplit(text.strip())
    match parts.scheme:
        case "s3":
            return BucketCheckpoint(parts)
        case "hf":
            return HubCheckpoint(parts, hub_token)
        case _:
            return FolderCheckpoint(Path(text))
