"""Stores of adapters' files; GRAFTWORK_ARTIFACT_STORE selects the implementation."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
from botocore.config import Config
from django.conf import settings

from controlplane.artifacts.store.base import ArtifactStore, ByteStream
from controlplane.artifacts.store.local import LocalStore
from controlplane.artifacts.store.refusals import s3_advice
from controlplane.artifacts.store.s3 import S3Store, s3_answers
from controlplane.platform.aws_time_limit import heed_time_limit

__all__ = ["ArtifactStore", "ByteStream", "artifact_store", "s3_advice", "s3_answers", "s3_client"]


def artifact_store() -> ArtifactStore:
    """Return this installation's configured store."""
    parts = urlsplit(settings.GRAFTWORK.artifact_store)
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)))
    return S3Store(s3_client(), bucket=parts.netloc, prefix=parts.path)


def s3_client() -> Any:
    """A boto3 client with AWS's credential chain, for S3 or GRAFTWORK_S3_ENDPOINT_URL."""
    return _s3_client(settings.GRAFTWORK.s3_endpoint_url)


@lru_cache(maxsize=2)
def _s3_client(endpoint_url: str | None) -> Any:
    # One for the process: a client keeps its connections, and may be used by any thread. Timeouts are
    # short because a person may stand behind them; boto3's own would add up to five minutes. Checksums
    # of boto3's own are for S3 alone, and some that speak its API get them wrong; content is held to its
    # SHA-256 here and by every worker.
    options = Config(
        connect_timeout=3,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 3},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return heed_time_limit(boto3.Session().client("s3", endpoint_url=endpoint_url, config=options))
