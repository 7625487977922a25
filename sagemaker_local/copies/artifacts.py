"""Brings a model's or an adapter's files to this host, as SageMaker does before it starts a container."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_local.copies.command import ContainerSpec
from sagemaker_local.copies.errors import ArtifactError

_MODEL_DIR: Final = "/opt/ml/model"
"""Where SageMaker unpacks an artifact in the container."""


@dataclass(frozen=True, slots=True)
class Model:
    """A folder of weights, one of adapters that came with them, and what was fetched for both."""

    folder: Path
    adapters: Path | None
    fetched: tuple[Path, ...]


class Artifacts:
    """Each place is read anew when asked, and unpacked beside what is in use."""

    def __init__(self, folder: Path, s3: Callable[[], Any]) -> None:
        """`s3` makes a boto3 client; it is called in a thread."""
        self._folder, self._s3 = folder, s3
        self._count = 0

    async def model(self, spec: ContainerSpec) -> Model:
        """Raises ArtifactError when there are no such files."""
        unpacked = await self.fetch(spec.artifact) if spec.artifact else None
        fetched = () if unpacked is None else (unpacked,)
        adapters = (
            unpacked / "adapters" if unpacked is not None and (unpacked / "adapters").is_dir() else None
        )
        where = spec.model_id
        if where.startswith("s3://"):
            folder = await self.fetch(where)
            return Model(folder, adapters, (*fetched, folder))
        if where and not where.startswith(_MODEL_DIR):
            if not await asyncio.to_thread(Path(where).is_dir):
                raise ArtifactError(f"OPTION_MODEL_ID {where} is no folder of this host, nor s3://")
            return Model(Path(where), adapters, fetched)
        if unpacked is None:
            raise ArtifactError("the container has neither an artifact nor OPTION_MODEL_ID elsewhere")
        return Model(unpacked / where.removeprefix(_MODEL_DIR).lstrip("/"), adapters, fetched)

    async def fetch(self, url: str) -> Path:
        """A new folder with the files of an archive (`.tar.gz`), or under a prefix.

        Raises:
            ArtifactError: nothing lies there, or it is no archive.
        """
        self._count += 1
        folder = self._folder / f"{hashlib.sha256(url.encode()).hexdigest()[:12]}.{self._count}"
        try:
            await asyncio.to_thread(self._fetch, url, folder)
        except (ClientError, BotoCoreError, OSError, tarfile.TarError, EOFError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ArtifactError(f"{url} cannot be had: {error}") from error
        return folder

    def _fetch(self, url: str, folder: Path) -> None:
        if not url.startswith("s3://"):
            raise ArtifactError(f"{url} is no s3:// URL")
        bucket, _, key = url.removeprefix("s3://").partition("/")
        folder.mkdir(parents=True)
        client = self._s3()
        if not key.endswith((".tar.gz", ".tgz")):
            self._prefix(client, bucket, key, folder)
            return
        archive = folder.with_suffix(".tar.gz")
        try:
            client.download_file(bucket, key, str(archive))
            with tarfile.open(archive) as packed:
                _unpack(packed, folder)
        finally:
            archive.unlink(missing_ok=True)

    def _prefix(self, client: Any, bucket: str, key: str, folder: Path) -> None:
        prefix = key if key.endswith("/") or not key else key + "/"
        found = False
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", []):
                target = (folder / item["Key"].removeprefix(prefix)).resolve()
                if item["Key"].endswith("/") or not target.is_relative_to(folder.resolve()):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, item["Key"], str(target))
                found = True
        if not found:
            raise ArtifactError(f"nothing lies under s3://{bucket}/{prefix}")


def _unpack(packed: tarfile.TarFile, folder: Path) -> None:
    """What stays in `folder`. Python has the filter from 3.11.4 on; before, links are refused as well."""
    if hasattr(tarfile, "data_filter"):
        packed.extractall(folder, filter="data")
        return
    for member in packed.getmembers():
        inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise ArtifactError(f"{member.name} in the archive is no file of its own folder")
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    packed.extractall(folder)  # noqa: S202


def copy_prefix(s3: Callable[[], Any], source: str, target: str) -> None:
    """Copies the objects under one s3:// prefix below another.

    Raises:
        ArtifactError: nothing lies there, or it is no prefix.
        ClientError, BotoCoreError: S3 refuses, or does not answer.
    """
    if not source.startswith("s3://") or source.endswith((".tar.gz", ".tgz")):
        raise ArtifactError("it is no s3:// prefix of uncompressed files")
    client = s3()
    bucket, prefix = _place(source)
    to_bucket, to_prefix = _place(target)
    found = False
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            key = to_prefix + item["Key"].removeprefix(prefix)
            client.copy({"Bucket": bucket, "Key": item["Key"]}, to_bucket, key)
            found = True
    if not found:
        raise ArtifactError("nothing lies there")


def _place(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, f"{key.rstrip('/')}/" if key.strip("/") else ""


def link_tree(source: Path, target: Path) -> None:
    """The same files under another folder: by links where the file system has them."""
    shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
