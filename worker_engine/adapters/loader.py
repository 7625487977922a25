"""Loads an AdapterRef: fetch into the content-addressed cache, verify, parse.

All functions block; the adapter pool runs them in threads.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from contracts.adapters.bundled_worker import refuse_config, refuse_unserved
from contracts.adapters.config import MAX_ADAPTER_BYTES, MAX_CONFIG_BYTES, AdapterConfigError, LoraConfig
from contracts.adapters.file_limit import DEFAULT_RANK, max_adapter_bytes
from contracts.adapters.reference import ADAPTER_FILES, AdapterMix, AdapterRef
from contracts.adapters.tensors import Modules, Shape, sort_tensors
from contracts.capabilities.worker import TRAITS, WORKER
from worker_engine.adapters.adapter import Adapter, mix_adapters, pack_adapter
from worker_engine.adapters.base_weights import BaseWeights
from worker_engine.adapters.build import AdapterBuilder
from worker_engine.adapters.disk_cache import AdapterDiskCache, files_digest
from worker_engine.checkpoint.pooling_config import parse_pooling
from worker_engine.errors import AdapterRefused, AdapterUnavailable, CheckpointError

_MISSING_CODES: Final = frozenset({"NoSuchKey", "404", "AccessDenied"})
"""S3's codes for an object that is not there; the last to a reader that may not list the bucket."""


class AdapterLoader:
    """Fetches and checks adapters for one model."""

    def __init__(
        self,
        model: Path,
        cache_dir: Path,
        *,
        max_bytes: int = 0,
        memory_bytes: int = 1 << 40,
        dtype: torch.dtype,
        device: torch.device,
        s3_endpoint_url: str | None = None,
        max_cache_bytes: int = 1 << 40,
    ) -> None:
        """Open the base model's checkpoint. Raises CheckpointError.

        Args:
            model: the base model's folder.
            device: where the adapters are used. Each is built in one buffer of host memory, which is pinned
                for
                CUDA; the CPU reads it in place.
            max_bytes: size limit of one adapter's file; 0 takes `max_adapter_bytes` of the base model, and
                at most MAX_ADAPTER_BYTES or twice `memory_bytes`: float32 files take half of it in memory.
            memory_bytes: host memory for adapters.
                `max_cache_bytes` limits all files in `cache_dir`.
        """
        self._base = BaseWeights(model, dtype)
        modules = {name.removesuffix(".weight"): shape for name, shape in self._base.shapes.items()}
        self._max_bytes = max_bytes or min(
            max_adapter_bytes(modules, DEFAULT_RANK), max(MAX_ADAPTER_BYTES, 2 * memory_bytes)
        )
        self._cache = AdapterDiskCache(cache_dir, max_bytes=max_cache_bytes)
        self._dtype, self._device = dtype, device
        # Cache the sorted names: sorting 240 tensors is a third of a load, and many adapters share one
        # recipe.
        self._sorted = lru_cache(maxsize=64)(self._sort)
        self._s3_endpoint_url = s3_endpoint_url

    @property
    def num_unkept(self) -> int:
        """Adapters whose files the disk cache could not take."""
        return self._cache.num_failed

    def load(self, ref: AdapterRef | AdapterMix) -> Adapter:
        """Return the adapter. Side effect: its files stay in the cache folder.

        A mix is built from its members' files; the members need not be in memory and are not kept there.

        Raises:
            AdapterUnavailable: the files could not be fetched (a retry may help).
            AdapterRefused: the files do not match the reference, or do not fit this model.
        """
        if isinstance(ref, AdapterMix):
            members = [(self._load(member), weight) for member, weight in ref.members]
            return self._placed(mix_adapters(ref.sha256, members))
        return self._placed(self._load(ref))

    def _placed(self, adapter: Adapter) -> Adapter:
        placed = pack_adapter(adapter, pinned=self._device.type == "cuda")
        if (experts := self._base.config.experts) is not None:
            placed.expert_addresses(experts)
        return placed

    def _load(self, ref: AdapterRef) -> Adapter:
        files = self._read(ref)
        try:
            tensors = load_safetensors(files["adapter_model.safetensors"])
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise AdapterRefused(f"adapter_model.safetensors is not a safetensors file: {error}") from error
        adapter = self._build(ref, files["adapter_config.json"], tensors)
        try:
            pooling = parse_pooling(files.get) if adapter.embeds_only else None
        except CheckpointError as error:
            raise AdapterRefused(str(error)) from error
        return replace(adapter, pooling=pooling)

    def identify(self, uri: str) -> tuple[str, int]:
        """Return the digest and largest rank of the adapter now stored at `uri`; its files stay in the cache.

        Raises:
            AdapterUnavailable: the files could not be fetched (a retry may help).
            AdapterRefused: its configuration is not supported.
        """
        files = self._fetch_all(uri)
        config = _config(files)
        if (digest := files_digest(files)) not in self._cache:
            self._cache.store(digest, files)
        return digest, config.max_rank

    def is_cached(self, ref: AdapterRef | AdapterMix) -> bool:
        """Return True if all files of the adapter are in the disk cache."""
        refs = [member for member, _ in ref.members] if isinstance(ref, AdapterMix) else [ref]
        return all(member.sha256 in self._cache for member in refs)

    def cached(self) -> list[str]:
        """Digests of the adapters whose files are on disk. Blocking."""
        return self._cache.digests()

    def _read(self, ref: AdapterRef) -> dict[str, bytes]:
        """Return the adapter's files, from the cache if intact. The verified bytes are the ones that are
        parsed.
        """
        if (cached := self._cache.read(ref.sha256)) is not None:
            return cached
        files = self._fetch_all(ref.uri)
        if (digest := files_digest(files)) != ref.sha256:
            raise AdapterRefused(
                f"adapter {ref.name}: the files at its uri have digest {digest}, expected {ref.sha256}"
            )
        self._cache.store(ref.sha256, files)
        return files

    def _fetch_all(self, uri: str) -> dict[str, bytes]:
        """Return the adapter's files; of an embedding adapter also those of its pooling, if it has any."""
        files = {name: self._fetch(uri, name) for name in ADAPTER_FILES}
        for name in _config(files).extra_files:
            try:
                files[name] = self._fetch(uri, name)
            except _FileMissing:
                continue
        return files

    def _fetch(self, uri: str, name: str) -> bytes:
        limit = MAX_CONFIG_BYTES if name.endswith(".json") else self._max_bytes
        parts = urllib.parse.urlsplit(uri)
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            data = _fetch_file(Path(urllib.parse.unquote(parts.path)) / name, limit)
        elif parts.scheme == "s3" and parts.netloc:
            key = f"{parts.path.strip('/')}/{name}".lstrip("/")
            data = self._fetch_s3(parts.netloc, key, limit)
        else:
            raise AdapterRefused(f"adapter.uri must be file:///... or s3://..., got {uri!r}", param="adapter")
        if len(data) > limit:
            raise AdapterRefused(f"{name} is larger than {limit} bytes")
        return data

    def _fetch_s3(self, bucket: str, key: str, limit: int) -> bytes:
        # Import boto3 only for s3:// adapters: it takes 0.3 s.
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = boto3.session.Session().client("s3", endpoint_url=self._s3_endpoint_url)
            body = client.get_object(Bucket=bucket, Key=key)["Body"]
            data: bytes = body.read(limit + 1)
            body.close()
        except (BotoCoreError, ClientError) as error:
            text = "see that it is there, not archived, and that the worker's role may read it"
            missing = isinstance(error, ClientError) and error.response["Error"]["Code"] in _MISSING_CODES
            kind = _FileMissing if missing else AdapterUnavailable
            raise kind(f"cannot fetch s3://{bucket}/{key}: {text} ({error})") from error
        return data

    def _sort(self, config: bytes, shapes: tuple[tuple[str, Shape], ...]) -> tuple[LoraConfig, Modules]:
        """Raises AdapterConfigError."""
        parsed = LoraConfig.from_bytes(config)
        traits = WORKER.adapter_traits(self._base.config.architecture) or TRAITS
        refuse_config(parsed, traits)
        parsed = parsed.for_tensors((name for name, _ in shapes), self._base.shapes)
        modules = sort_tensors(parsed, dict(shapes), self._base.shapes)
        refuse_unserved(parsed, modules, self._base.shapes, traits)
        return parsed, modules

    def _build(self, ref: AdapterRef, config: bytes, tensors: Mapping[str, torch.Tensor]) -> Adapter:
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in sorted(tensors.items()))
        try:
            parsed, modules = self._sorted(config, shapes)
            adapter = AdapterBuilder(parsed, modules, tensors, self._base, self._dtype).build(ref.sha256)
        except AdapterConfigError as error:
            raise AdapterRefused(str(error)) from error
        pairs = [pair for by_module in (*adapter.layers, adapter.tops) for pair in by_module.values()]
        if (rank := max((pair.rank for pair in pairs), default=1)) > ref.rank:
            raise AdapterRefused(f"adapter {ref.name} has rank {rank}, its reference says {ref.rank}")
        return adapter


class _FileMissing(AdapterUnavailable):
    """The store answers that it has no such file."""


def _config(files: Mapping[str, bytes]) -> LoraConfig:
    try:
        return LoraConfig.from_bytes(files["adapter_config.json"])
    except AdapterConfigError as error:
        raise AdapterRefused(str(error)) from error


def _fetch_file(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise AdapterRefused(f"{path.name} is larger than {limit} bytes")
            return file.read(limit + 1)
    except OSError as error:
        kind = _FileMissing if isinstance(error, FileNotFoundError) else AdapterUnavailable
        raise kind(f"cannot read {path}: {error.strerror}") from error
