"""Validates an adapter version, step by step, and puts it into service or refuses it."""

from __future__ import annotations

import hashlib
import logging
import uuid
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from controlplane.adapters.artifact_store import ByteStream, artifact_store
from controlplane.adapters.lora_config import LoraConfig
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import (
    FILE_LIMITS,
    VALIDATE_TASK,
    adapter_publish,
    pickle_refusal,
)
from controlplane.adapters.sources import MissingFileError, open_source
from controlplane.adapters.steps import StepStatus, first_steps, set_step
from controlplane.adapters.tensors import check_tensors, check_values
from controlplane.catalog.models import BaseModel
from controlplane.catalog.safetensors_header import HeaderError, read_header
from controlplane.errors import InvalidInputError, RefusedError
from controlplane.queue import enqueue
from worker_engine.protocol import ADAPTER_FILES, adapter_digest

logger = logging.getLogger(__name__)
_CONFIG, _WEIGHTS = ADAPTER_FILES
_ABANDONED: Final = timedelta(minutes=2)
_MAX_ATTEMPTS: Final = 5


def version_validate(*, version_id: int) -> None:
    """Validates one version; does nothing when another worker has it, or it is settled or gone.

    Raises:
        Exception: something that is not the adapter's fault; the version waits for another attempt.
    """
    # Redelivery, beat and a second worker may all call this: the conditional UPDATE lets one in.
    claimed = AdapterVersion.objects.filter(pk=version_id, status=AdapterVersion.Status.PENDING).update(
        status=AdapterVersion.Status.VALIDATING,
        heartbeat_at=timezone.now(),
        attempts=F("attempts") + 1,
        steps=first_steps(),
    )
    if not claimed:
        return
    version = AdapterVersion.objects.select_related("adapter__base_model").get(pk=version_id)
    try:
        _Validation(version).run()
    except (RefusedError, InvalidInputError) as error:
        _refuse(version, str(error))
    except Exception as error:
        if not AdapterVersion.objects.filter(pk=version.pk).exists():
            _discard(version)
            return  # its adapter was deleted meanwhile
        if version.attempts >= _MAX_ATTEMPTS:
            _refuse(
                version, f"validation failed {version.attempts} times, last by: {error}; register it again"
            )
        else:
            AdapterVersion.objects.filter(pk=version.pk).update(status=AdapterVersion.Status.PENDING)
        raise


def validation_resume() -> int:
    """Enqueues what waits too long: its message was lost, or its worker died. Returns how many."""
    before = timezone.now() - _ABANDONED
    AdapterVersion.objects.filter(status=AdapterVersion.Status.VALIDATING, heartbeat_at__lt=before).update(
        status=AdapterVersion.Status.PENDING
    )
    recent = timezone.now() - timedelta(seconds=10)
    waiting = AdapterVersion.objects.filter(status=AdapterVersion.Status.PENDING, created_at__lt=recent)
    waiting = waiting.filter(Q(heartbeat_at=None) | Q(heartbeat_at__lt=recent))
    ids = list(waiting.values_list("pk", flat=True)[:1000])
    for version_id in ids:
        enqueue(VALIDATE_TASK, version_id=version_id)
    return len(ids)


def _refuse(version: AdapterVersion, reason: str) -> None:
    """Records why, and leaves none of the files."""
    steps = [{**step, "status": "failed", "detail": reason} if step["status"] == "running" else step
             for step in version.steps]  # fmt: skip
    AdapterVersion.objects.filter(pk=version.pk).update(
        status=AdapterVersion.Status.REFUSED, reason=reason, steps=steps, staging=""
    )
    _discard(version)


def _discard(version: AdapterVersion) -> None:
    if version.staging:
        artifact_store().remove(version.staging)


class _Validation:
    """One attempt."""

    def __init__(self, version: AdapterVersion) -> None:
        self._version = version
        self._base_model: BaseModel = version.adapter.base_model
        self._store = artifact_store()

    def run(self) -> None:
        sizes = self._fetch()
        config, config_sha256 = self._check_config()
        rank, weights_sha256 = self._check_weights(config, sizes[_WEIGHTS])
        digest = adapter_digest({_CONFIG: config_sha256, _WEIGHTS: weights_sha256})
        self._publish(digest, rank, sum(sizes.values()), config)

    def _fetch(self) -> dict[str, int]:
        self._step("files", "running")
        if self._version.source:
            self._import()
        sizes = {}
        for name in ADAPTER_FILES:
            size = self._store.size(f"{self._version.staging}/{name}")
            if size is None:
                raise RefusedError(f"{name} is no longer in the store: register it again")
            sizes[name] = size
        self._step("files", "done", ", ".join(f"{name} {size} bytes" for name, size in sizes.items()))
        return sizes

    def _import(self) -> None:
        """Copies an import's files into the store; what a failed attempt left is replaced."""
        source = self._version.source
        if self._version.staging:
            self._store.remove(self._version.staging)
        self._version.staging = f"incoming/{uuid.uuid4().hex}"
        self._version.save(update_fields=["staging"])
        for name in ADAPTER_FILES:
            try:
                with open_source(source, name) as stream:
                    key = f"{self._version.staging}/{name}"
                    self._store.put(key, stream, limit=FILE_LIMITS[name])
            except MissingFileError as error:
                raise RefusedError(self._missing(source, name)) from error

    def _missing(self, source: str, name: str) -> str:
        pickle = "adapter_model.bin"
        if name == _WEIGHTS:
            try:
                with open_source(source, pickle):
                    return pickle_refusal(pickle)
            except MissingFileError:
                pass
        return f"{source} holds no {name}, expected {' and '.join(ADAPTER_FILES)}"

    def _check_config(self) -> tuple[LoraConfig, str]:
        self._step("config", "running")
        with self._store.open(f"{self._version.staging}/{_CONFIG}") as stream:
            data = stream.read(FILE_LIMITS[_CONFIG])
        config = LoraConfig.from_bytes(data, max_rank=self._base_model.max_lora_rank)
        self._step("config", "done", f"LoRA of rank {config.rank}")
        return config, hashlib.sha256(data).hexdigest()

    def _check_weights(self, config: LoraConfig, size: int) -> tuple[int, str]:
        """One pass over the file: what is hashed is what was checked."""
        with self._store.open(f"{self._version.staging}/{_WEIGHTS}") as body:
            stream = _HashingStream(body)
            self._step("header", "running")
            try:
                header = read_header(stream, size=size)
            except HeaderError as error:
                raise RefusedError(f"{_WEIGHTS} is not a whole safetensors file: {error}") from error
            self._step("header", "done", f"{len(header.tensors)} tensors")
            self._step("tensors", "running")
            modules = {name: (out, into) for name, (out, into) in self._base_model.modules.items()}
            rank = check_tensors(header, config, modules)
            self._step("tensors", "done", f"largest rank {rank}")
            self._step("values", "running")
            check_values(stream, header, progress=self._beat)
            self._step("values", "done")
        return rank, stream.sha256.hexdigest()

    def _publish(self, digest: str, rank: int, size: int, config: LoraConfig) -> None:
        self._step("publish", "running")
        version, folder = self._version, f"adapters/{digest}"
        staging = version.staging
        steps = set_step(version.steps, "publish", "done", "callable within a second")
        with transaction.atomic():
            adapter = Adapter.objects.select_for_update(of=("self",)).get(pk=version.adapter_id)
            if BaseModel.objects.filter(name=adapter.name).exists():
                raise RefusedError(
                    f"a base model is now called {adapter.name!r}: register under another name"
                )
            version.status, version.steps, version.staging = AdapterVersion.Status.READY, steps, ""
            version.sha256, version.uri = digest, self._store.uri(folder)
            version.rank, version.size_bytes, version.config = rank, size, config.raw
            version.save()
            adapter_publish(adapter=adapter)
            # Last, so that whatever fails before leaves the files where the next attempt looks.
            self._store.move(staging, folder)

    def _step(self, name: str, status: StepStatus, detail: str = "") -> None:
        self._version.steps = set_step(self._version.steps, name, status, detail)
        self._version.heartbeat_at = self._beaten = timezone.now()
        self._version.save(update_fields=["steps", "heartbeat_at"])

    def _beat(self) -> None:
        """Says that this attempt lives, at most every few seconds."""
        if timezone.now() - self._beaten > timedelta(seconds=5):
            self._beaten = timezone.now()
            AdapterVersion.objects.filter(pk=self._version.pk).update(heartbeat_at=self._beaten)


class _HashingStream:
    """Hashes what is read through it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self.sha256 = stream, hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self.sha256.update(data)
        return data
