"""Where adapters' files are kept; GRAFTWORK_ARTIFACT_STORE says which implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
from django.conf import settings

from controlplane.adapters.artifact_store.base import ArtifactStore, ByteStream
from controlplane.adapters.artifact_store.local import LocalStore
from controlplane.adapters.artifact_store.s3 import S3Store

__all__ = ["ArtifactStore", "ByteStream", "artifact_store", "s3_client"]


def artifact_store() -> ArtifactStore:
    """The store that this installation is set to."""
    parts = urlsplit(settings.GRAFTWORK.artifact_store)
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)))
    return S3Store(s3_client(), bucket=parts.netloc, prefix=parts.path)


def s3_client() -> Any:
    """A boto3 client with AWS's credential chain, for S3 or GRAFTWORK_S3_ENDPOINT_URL."""
    return boto3.client("s3", endpoint_url=settings.GRAFTWORK.s3_endpoint_url)
