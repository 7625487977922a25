"""Fetches a model's or adapter's files to this host, as SageMaker does before it starts a container."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_local.copies.command import MODEL_FOLDER, ContainerSpec
from sagemaker_local.copies.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Model:
    """A folder of weights, a folder of adapters that came with them, and the fetched folders.

    Attributes:
        additional: folders of additional data sources, by name of the channel.
    """

    folder: Path
    adapters: Path | None
    fetched: tuple[Path, ...]
    additional: Mapping[str, Path] = field(default_factory=dict)


class Artifacts:
    """Fetches each artifact again on request, into a new folder."""

    def __init__(self, folder: Path, s3: Callable[[], Any]) -> None:
        """`s3` creates a boto3 client; it is called in a thread."""
        self._folder, self._s3 = folder, s3
        self._count = 0

    async def model(self, spec: ContainerSpec) -> Model:
        """Fetch a container's files. Raises ArtifactError if they do not exist."""
        model = await self._model(spec)
        additional = {channel: await self.fetch(url) for channel, url in spec.additional.items()}
        return replace(model, fetched=(*model.fetched, *additional.values()), additional=additional)

    async def _model(self, spec: ContainerSpec) -> Model:
        unpacked = await self.fetch(spec.artifact) if spec.artifact else None
        fetched = () if unpacked is None else (unpacked,)
        adapters = (
            unpacked / "adapters" if unpacked is not None and (unpacked / "adapters").is_dir() else None
        )
        if spec.family:
            # The container itself reads its files; without an artifact, /opt/ml/model is empty.
            folder = await asyncio.to_thread(self._empty) if unpacked is None else unpacked
            return Model(folder, None, (folder,))
        where = spec.model_id
        if where.startswith("s3://"):
            folder = await self.fetch(where)
            return Model(folder, adapters, (*fetched, folder))
        if where and not where.startswith(MODEL_FOLDER):
            if not await asyncio.to_thread(Path(where).is_dir):
                raise ArtifactError(f"OPTION_MODEL_ID {where} is no folder of this host, nor s3://")
            return Model(Path(where), adapters, fetched)
        if unpacked is None:
            raise ArtifactError("the container has neither an artifact nor OPTION_MODEL_ID elsewhere")
        return Model(unpacked / where.removeprefix(MODEL_FOLDER).lstrip("/"), adapters, fetched)

    async def fetch(self, url: str) -> Path:
        """Fetch an archive (`.tar.gz`) or a prefix into a new folder, and return that.

        Raises:
            ArtifactError: there are no such files, or the archive is invalid.
        """
        self._count += 1
        folder = self._folder / f"{hashlib.sha256(url.encode()).hexdigest()[:12]}.{self._count}"
        try:
            await asyncio.to_thread(self._fetch, url, folder)
        except (ClientError, BotoCoreError, OSError, tarfile.TarError, EOFError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ArtifactError(f"{url} cannot be had: {error}") from error
        return folder

    def _empty(self) -> Path:
        self._count += 1
        folder = self._folder / f"empty.{self._count}"
        folder.mkdir(parents=True)
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
        for name in _keys(client, bucket, prefix):
            target = (folder / name.removeprefix(prefix)).resolve()
            if name.endswith("/") or not target.is_relative_to(folder.resolve()):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, name, str(target))
            found = True
        if not found:
            raise ArtifactError(f"nothing lies under s3://{bucket}/{prefix}")


def _keys(client: Any, bucket: str, prefix: str) -> Iterator[str]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from (item["Key"] for item in page.get("Contents", []))


def _unpack(packed: tarfile.TarFile, folder: Path) -> None:
    """Unpack only members inside `folder`. Python before 3.11.4 lacks the filter; then links are refused."""
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
    """Copy the objects under one s3:// prefix to another.

    Raises:
        ArtifactError: there are no objects, or the URL is no prefix.
        ClientError, BotoCoreError: S3 refuses, or does not answer.
    """
    if not source.startswith("s3://") or source.endswith((".tar.gz", ".tgz")):
        raise ArtifactError("it is no s3:// prefix of uncompressed files")
    client = s3()
    bucket, prefix = _split_url(source)
    to_bucket, to_prefix = _split_url(target)
    found = False
    for key in _keys(client, bucket, prefix):
        client.copy({"Bucket": bucket, "Key": key}, to_bucket, to_prefix + key.removeprefix(prefix))
        found = True
    if not found:
        raise ArtifactError("nothing lies there")


def _split_url(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, f"{key.rstrip('/')}/" if key.strip("/") else ""


def link_tree(source: Path, target: Path) -> None:
    """Mirror the files into another folder, by links where the file system supports them."""
    shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
