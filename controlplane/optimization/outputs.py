"""SageMaker's outputs in S3: hashed once, kept in place, removed when nothing needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from controlplane.catalog.digests import checkpoint_digest
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.account import Account, aws_answers
from controlplane.deployments.provisioners.sagemaker.archives import Store

_CHUNK: Final = 4 << 20
Heartbeat = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Output:
    """Files under one S3 prefix.

    Attributes:
        files: path below the prefix -> SHA-256.
        size: bytes of all of them.
    """

    uri: str
    files: dict[str, str]
    size: int

    @property
    def digest(self) -> str:
        return checkpoint_digest(self.files)


def output_read(account: Account, uri: str, *, heartbeat: Heartbeat) -> Output:
    """Hash every file under `uri`. Raises ProvisioningError."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    files: dict[str, str] = {}
    total = 0
    with aws_answers("list_objects_v2", uri):
        pages = account.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        found = [item for page in pages for item in page.get("Contents", ()) if item["Key"][-1] != "/"]
        for item in found:
            digest = hashlib.sha256()
            with closing(account.s3.get_object(Bucket=bucket, Key=item["Key"])["Body"]) as body:
                while data := body.read(_CHUNK):
                    digest.update(data)
                    heartbeat()
            files[item["Key"].removeprefix(prefix)] = digest.hexdigest()
            total += int(item["Size"])
    return Output(uri, files, total)


def output_remove(target: Target, uri: str) -> None:
    """Remove the files under `uri`, which must be in the target's own folder. Raises ProvisioningError."""
    with closing(Account.from_target(target)) as account:
        folder_remove(Store(account, target, heartbeat=lambda: None), uri)


def folder_remove(store: Store, uri: str) -> None:
    """Remove the files under `uri` if it lies inside `store`. Raises ProvisioningError."""
    own = store.url("")
    if not uri.startswith(own) or uri == own:
        return
    folder = uri.removeprefix(own).rstrip("/")
    while keys := store.keys(folder):
        store.remove(keys)
