"""One attempt at validating an adapter version: fetch, check, copy into the store, publish."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.reference import ADAPTER_FILES, AdapterRef, adapter_digest, engine_name
from controlplane.adapters.aliases import default_record
from controlplane.adapters.card import card_drop, card_take, file_put
from controlplane.adapters.card_html import card_render
from controlplane.adapters.models import Adapter, AdapterVersion, ArtifactRemoval
from controlplane.adapters.quotas import quota_check_bytes
from controlplane.adapters.selectors import default_number
from controlplane.adapters.services import adapter_publish, staging_discard
from controlplane.adapters.smoke import smoke_test
from controlplane.adapters.sources import source_discard, source_fetch, source_saved
from controlplane.adapters.steps import StepStatus, set_step
from controlplane.adapters.tensors import check_tensors, check_values
from controlplane.artifacts.store import ByteStream, artifact_store
from controlplane.artifacts.uploads.file_names import FILE_LIMITS
from controlplane.catalog.models import BaseModel
from controlplane.catalog.safetensors_header import HeaderError, read_header
from controlplane.errors import RefusedError, UnavailableError
from controlplane.platform.audit.services import audit_record
from controlplane.routes.services import route_lock
from controlplane.webhooks.outbox import event_emit

_CONFIG, _WEIGHTS = ADAPTER_FILES
_MAX_DETAIL: Final = 1000
"""Characters of a step's text."""


class SupersededError(Exception):
    """Another attempt has taken the version over, or the version is gone: this one must change nothing."""


class ValidationAttempt:
    """The attempt that claimed `version`; every write of it holds only while that claim stands."""

    def __init__(self, version: AdapterVersion) -> None:
        self._version = version
        self._base_model: BaseModel = version.adapter.base_model
        self._store = artifact_store()
        self._beaten = timezone.now()

    def run(self) -> None:
        """Makes the version ready.

        Raises:
            RefusedError: the adapter is not acceptable, for good.
            UnavailableError: the store or the source does not answer; a later attempt may succeed.
            SupersededError: the claim was lost.
        """
        sizes = self._fetch()
        config, config_sha256 = self._check_config()
        rank, weights_sha256 = self._check_weights(config, sizes[_WEIGHTS])
        digest = adapter_digest({_CONFIG: config_sha256, _WEIGHTS: weights_sha256})
        self._smoke(digest, rank)
        self._claim(digest, sum(sizes.values()))
        self._publish(digest, rank, sum(sizes.values()), config)
        staging_discard(version=self._version)
        source_discard(self._version.source, tenant=self._version.adapter.tenant)

    def _fetch(self) -> dict[str, int]:
        self._step("files", "running")
        if self._version.source:
            self._import()
        self._keep_card()
        sizes = {}
        for name in ADAPTER_FILES:
            size = self._store.size(f"{self._version.staging}/{name}")
            if size is None:
                raise RefusedError(f"{name} is no longer in the store: register it again")
            sizes[name] = size
        self._step("files", "done", ", ".join(f"{name} {size} bytes" for name, size in sizes.items()))
        return sizes

    def _keep_card(self) -> None:
        """Into the row first, then out of the store: whoever dies between the two does it again."""
        card = card_take(self._store, self._version.staging)
        if card is not None:
            self._update(card=card, card_html=card_render(card))
            card_drop(self._store, self._version.staging)

    def _import(self) -> None:
        """Copies an import's files into the store; what a failed attempt left is replaced."""
        source = source_saved(self._version.source, tenant=self._version.adapter.tenant).pinned()
        if self._version.staging:
            self._store.remove(self._version.staging)
        self._version.staging = staging = f"incoming/{uuid.uuid4().hex}"
        self._version.source = source.uri
        self._update(staging=staging, source=source.uri)

        def put(name: str, stream: ByteStream) -> None:
            # An archive's bytes have arrived already; what they unpack to may still be much.
            watched = _WatchedStream(stream, lambda _: self._beat())
            file_put(self._store, staging, name, watched)

        source_fetch(source, put, progress=self._beat)

    def _check_config(self) -> tuple[LoraConfig, str]:
        self._step("config", "running")
        with self._store.open(f"{self._version.staging}/{_CONFIG}") as stream:
            data = stream.read(FILE_LIMITS[_CONFIG])
        try:
            config = LoraConfig.from_bytes(data)
        except AdapterConfigError as error:
            raise RefusedError(str(error)) from error
        limit = self._base_model.max_lora_rank
        if config.max_rank > limit:
            raise RefusedError(f"{_CONFIG}: rank {config.max_rank} is more than {limit}, the base's limit")
        self._step("config", "done", f"LoRA of rank {config.rank}")
        return config, hashlib.sha256(data).hexdigest()

    def _check_weights(self, config: LoraConfig, size: int) -> tuple[int, str]:
        """One pass over the file: what is hashed is what was checked."""
        digest = hashlib.sha256()
        with self._store.open(f"{self._version.staging}/{_WEIGHTS}") as body:
            stream = _WatchedStream(body, digest.update)
            self._step("header", "running")
            try:
                header = read_header(stream, size=size)
            except HeaderError as error:
                raise RefusedError(f"{_WEIGHTS} is not a whole safetensors file: {error}") from error
            self._step("header", "done", f"{len(header.tensors)} tensors")
            self._step("tensors", "running")
            rank, scalings, warnings = check_tensors(header, config, self._base_model.modules)
            detail = "; ".join([f"largest rank {rank}", *warnings])[:_MAX_DETAIL]
            self._step("tensors", "warned" if warnings else "done", detail)
            self._step("values", "running")
            changes = check_values(stream, header, scalings=scalings, progress=self._beat)
            if changes:
                self._step("values", "done")
            else:
                self._step("values", "warned", "every lora_B is zero, so the adapter changes nothing")
        return rank, digest.hexdigest()

    def _smoke(self, digest: str, rank: int) -> None:
        """Generates with the staged files; what it costs nobody is billed for."""
        self._step("smoke", "running")
        version = self._version
        name = engine_name(
            tenant=version.adapter.tenant_id, adapter=version.adapter.name, version=version.number,
            sha256=digest,
        )  # fmt: skip
        ref = AdapterRef(name, self._store.uri(version.staging), digest, rank)
        smoke, status, detail = smoke_test(base_model=self._base_model, ref=ref, progress=self._live)
        self._update(smoke=smoke.to_dict() if smoke else None)
        self._step("smoke", status, detail)

    def _claim(self, digest: str, size: int) -> None:
        """Names the content before it is stored: from here on nobody removes files of this digest."""
        self._step("publish", "running")
        with transaction.atomic():
            quota_check_bytes(version=self._version, adding=size)
            route_lock()
            if ArtifactRemoval.objects.filter(pk=digest).exists():
                raise UnavailableError("the same files of a purged version are just being removed")
            self._update(sha256=digest, size_bytes=size)
            self._version.sha256 = digest

    def _publish(self, digest: str, rank: int, size: int, config: LoraConfig) -> None:
        version, folder = self._version, f"adapters/{digest}"
        # Before the transaction, which on SQLite holds the one write lock: a copy takes as long as the
        # files are large. Dying after it leaves files without a row under the address of their content,
        # where the next attempt's copy finds them.
        self._store.copy(version.staging, folder, progress=self._beat)
        steps = set_step(version.steps, "publish", "done", "callable within a second")
        with transaction.atomic():
            adapter = Adapter.objects.select_for_update(of=("self",)).filter(pk=version.adapter_id).first()
            if adapter is None:
                raise SupersededError
            # Under this lock nobody registers a base model, so the name cannot be taken meanwhile.
            route_lock()
            if BaseModel.objects.filter(name=adapter.name).exists():
                raise RefusedError(
                    f"a base model is now called {adapter.name!r}: register under another name"
                )
            meant = default_number(adapter=adapter)
            self._update(
                status=AdapterVersion.Status.READY, steps=steps, sha256=digest, uri=self._store.uri(folder),
                rank=rank, size_bytes=size, config=config.raw,
            )  # fmt: skip
            if version.makes_default and adapter.pinned_id is not None:
                adapter.pinned = version
                adapter.save(update_fields=["pinned"])
            default_record(adapter=adapter, before=meant)
            adapter_publish(adapter=adapter)
            told: dict[str, Any] = {
                "status": AdapterVersion.Status.READY, "sha256": digest, "rank": rank, "size_bytes": size,
                "default": default_number(adapter=adapter),
            }  # fmt: skip
            audit_record(tenant=adapter.tenant_id, action="adapter_version.ready", target=version, after=told)
            told = {"adapter": adapter.name, "version": version.number, "sha256": digest}
            event_emit(tenant=adapter.tenant_id, type="adapter.version.ready", data=told)

    def _step(self, name: str, status: StepStatus, detail: str = "") -> None:
        self._version.steps = set_step(self._version.steps, name, status, detail)
        self._beaten = timezone.now()
        self._update(steps=self._version.steps, heartbeat_at=self._beaten)

    def _beat(self) -> None:
        """Says that this attempt lives, at most every few seconds."""
        if timezone.now() - self._beaten > timedelta(seconds=5):
            self._live()

    def _live(self) -> None:
        """Says that this attempt lives: before something that may take a minute."""
        self._beaten = timezone.now()
        self._update(heartbeat_at=self._beaten)

    def _update(self, **values: Any) -> None:
        # An attempt that was taken for dead may wake up: the count it claimed with keeps it out.
        claim = {"status": AdapterVersion.Status.VALIDATING, "attempts": self._version.attempts}
        if not AdapterVersion.objects.filter(pk=self._version.pk, **claim).update(**values):
            raise SupersededError


class _WatchedStream:
    """Shows what is read through it to `watch`."""

    def __init__(self, stream: ByteStream, watch: Callable[[bytes], object]) -> None:
        self._stream, self._watch = stream, watch

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._watch(data)
        return data
