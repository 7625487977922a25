"""One attempt at validating an adapter version: fetch, check, copy into the store, publish."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.file_limit import DEFAULT_RANK, max_adapter_bytes
from contracts.adapters.reference import ADAPTER_FILES, AdapterRef, adapter_digest, engine_name
from contracts.capabilities.traits import AdapterNeeds
from controlplane.adapters.aliases import default_record
from controlplane.adapters.card import card_drop, card_take, file_put
from controlplane.adapters.card_html import card_render
from controlplane.adapters.models import Adapter, AdapterVersion, ArtifactRemoval
from controlplane.adapters.pooling import pooling_digests, pooling_take, pooling_traits
from controlplane.adapters.quotas import quota_check_bytes
from controlplane.adapters.selectors import default_number
from controlplane.adapters.services import adapter_publish, staging_discard
from controlplane.adapters.serving import serving_problem
from controlplane.adapters.smoke import smoke_test
from controlplane.adapters.sources import source_discard, source_fetch, source_saved
from controlplane.adapters.sources.base import WatchedStream
from controlplane.adapters.steps import Step, StepStatus, set_step
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
"""Longest text of a step, in characters."""


class SupersededError(Exception):
    """Another attempt has taken over, or the version is gone: this attempt must not write."""


class ValidationAttempt:
    """The attempt that claimed `version`; it can write only while that claim is valid."""

    def __init__(self, version: AdapterVersion) -> None:
        self._version = version
        self._base_model: BaseModel = version.adapter.base_model
        self._store = artifact_store()
        self._heartbeat_at = timezone.now()

    def run(self) -> None:
        """Validate the version and publish it as ready.

        Raises:
            RefusedError: the adapter is not acceptable; a retry does not help.
            UnavailableError: the store or the source does not answer; a later attempt may succeed.
            SupersededError: the claim was lost.
        """
        sizes = self._fetch()
        config, config_sha256 = self._check_config()
        needs, weights_sha256 = self._check_weights(config, sizes[_WEIGHTS])
        pooling = pooling_take(self._store, self._version.staging, embeds_only=config.embeds_only)
        needs = replace(needs, traits=needs.traits | pooling_traits(pooling))
        digests = {_CONFIG: config_sha256, _WEIGHTS: weights_sha256, **pooling_digests(pooling)}
        digest, size = adapter_digest(digests), sum(sizes.values()) + sum(map(len, pooling.values()))
        self._smoke(digest, needs)
        self._claim(digest, size)
        self._publish(digest, needs, size, config)
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
                raise RefusedError(f"{name} is no longer in the store: register the adapter again")
            sizes[name] = size
        limit = max_adapter_bytes(self._base_model.modules, self._base_model.max_lora_rank)
        if sizes[_WEIGHTS] > limit:
            raise RefusedError(
                f"{_WEIGHTS} has {sizes[_WEIGHTS]} bytes, at most {limit} are accepted for this base model:"
                " train fewer modules, at a lower rank, or save the weights in bfloat16"
            )
        self._step("files", "done", ", ".join(f"{name} {size} bytes" for name, size in sizes.items()))
        return sizes

    def _keep_card(self) -> None:
        """Save the card to the row, then delete it from the store: after a crash in between, this repeats."""
        card = card_take(self._store, self._version.staging)
        if card is not None:
            self._update(card=card, card_html=card_render(card))
            card_drop(self._store, self._version.staging)

    def _import(self) -> None:
        """Copy the source's files into the store, replacing those of a failed attempt."""
        source = source_saved(self._version.source, tenant=self._version.adapter.tenant).pinned()
        if self._version.staging:
            self._store.remove(self._version.staging)
        self._version.staging = staging = f"incoming/{uuid.uuid4().hex}"
        self._version.source = source.uri
        self._update(staging=staging, source=source.uri)

        def put(name: str, stream: ByteStream) -> None:
            # Unpacking an archive that has arrived may still take long, so it needs heartbeats.
            watched = WatchedStream(stream, lambda _: self._heartbeat())
            file_put(self._store, staging, name, watched)

        source_fetch(source, put, progress=self._heartbeat)

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

    def _check_weights(self, config: LoraConfig, size: int) -> tuple[AdapterNeeds, str]:
        """Check and hash the weights in one pass, so that the digest is of the checked bytes."""
        digest = hashlib.sha256()
        with self._store.open(f"{self._version.staging}/{_WEIGHTS}") as body:
            stream = WatchedStream(body, digest.update)
            self._step("header", "running")
            try:
                header = read_header(stream, size=size)
            except HeaderError as error:
                raise RefusedError(f"{_WEIGHTS} is not a whole safetensors file: {error}") from error
            self._step("header", "done", f"{len(header.tensors)} tensors")
            self._step("tensors", "running")
            base = self._base_model
            needs, scalings, warnings = check_tensors(
                header, config, base.modules, architecture=base.architecture
            )
            detail = "; ".join([f"largest rank {needs.rank}", *warnings])[:_MAX_DETAIL]
            self._step("tensors", "warned" if warnings else "done", detail)
            self._step("values", "running")
            changes = check_values(stream, header, scalings=scalings, progress=self._heartbeat)
            if changes:
                self._step("values", "done")
            else:
                self._step("values", "warned", "every lora_B is zero, so the adapter changes nothing")
        return needs, digest.hexdigest()

    def _smoke(self, digest: str, needs: AdapterNeeds) -> None:
        """Generate with the staged files; nobody is billed for it."""
        self._step("smoke", "running")
        version = self._version
        name = engine_name(
            tenant=version.adapter.tenant_id,
            adapter=version.adapter.name,
            version=version.number,
            sha256=digest,
        )
        traits = tuple(sorted(needs.traits))
        ref = AdapterRef(name, self._store.uri(version.staging), digest, needs.rank, traits)
        smoke, status, detail = smoke_test(base_model=self._base_model, ref=ref, progress=self._heartbeat_now)
        self._update(smoke=smoke.to_dict() if smoke else None)
        self._step("smoke", status, detail)

    def _claim(self, digest: str, size: int) -> None:
        """Write the digest to the row before storing the files, so that no removal deletes them."""
        self._step("publish", "running")
        with transaction.atomic():
            quota_check_bytes(version=self._version, adding=size)
            route_lock()
            if ArtifactRemoval.objects.filter(pk=digest).exists():
                raise UnavailableError("identical files of a purged version are being removed")
            self._update(sha256=digest, size_bytes=size)
            self._version.sha256 = digest

    def _publish(self, digest: str, needs: AdapterNeeds, size: int, config: LoraConfig) -> None:
        version, folder = self._version, f"adapters/{digest}"
        # Copy before the transaction, which on SQLite holds the only write lock, since large files take
        # long. After a crash here the next attempt's copy finds the content-addressed files.
        self._store.copy(version.staging, folder, progress=self._heartbeat)
        steps = set_step(version.steps, "publish", *self._stored(f"{folder}/{_WEIGHTS}"))
        with transaction.atomic():
            adapter = Adapter.objects.select_for_update(of=("self",)).filter(pk=version.adapter_id).first()
            if adapter is None:
                raise SupersededError
            # This lock keeps base models from being registered, so the name cannot be taken meanwhile.
            route_lock()
            if BaseModel.objects.filter(name=adapter.name).exists():
                raise RefusedError(
                    f"a base model is now called {adapter.name!r}: register under another name"
                )
            default_before = default_number(adapter=adapter)
            self._update(
                status=AdapterVersion.Status.READY,
                steps=steps,
                sha256=digest,
                uri=self._store.uri(folder),
                rank=needs.rank,
                traits=sorted(needs.traits),
                size_bytes=size,
                config=config.raw,
            )
            problem = self._note_serving(steps, default_before)
            self._pin(adapter, default_before, is_served=not problem)
            default_record(adapter=adapter, before=default_before)
            adapter_publish(adapter=adapter)
            data: dict[str, Any] = {
                "status": AdapterVersion.Status.READY,
                "sha256": digest,
                "rank": needs.rank,
                "traits": sorted(needs.traits),
                "size_bytes": size,
                "default": default_number(adapter=adapter),
            }
            audit_record(tenant=adapter.tenant_id, action="adapter_version.ready", target=version, after=data)
            data = {"adapter": adapter.name, "version": version.number, "sha256": digest}
            event_emit(tenant=adapter.tenant_id, type="adapter.version.ready", data=data)

    def _pin(self, adapter: Adapter, default: int | None, *, is_served: bool) -> None:
        """Pin the bare name's version if nothing can serve the new one; the next that is served ends it.

        Args:
            default: version of the bare name so far; None if there is none.
        """
        before, version = adapter.pinned, self._version
        if not is_served and before is None and default is not None:
            # Otherwise the bare name would move to a version whose requests are all refused.
            adapter.pinned, adapter.pinned_automatically = adapter.versions.get(number=default), True
        elif is_served and before is not None and adapter.pinned_automatically:
            if version.number < before.number:
                return
            later = adapter.versions.filter(status=AdapterVersion.Status.READY, number__gt=version.number)
            # Without a pin the bare name would mean a later version, which nothing can serve.
            adapter.pinned_automatically = later.exists()
            adapter.pinned = version if adapter.pinned_automatically else None
        elif is_served and before is not None and version.makes_default:
            adapter.pinned = version
        else:
            return
        adapter.save(update_fields=["pinned", "pinned_automatically"])
        numbers = [None if item is None else item.number for item in (before, adapter.pinned)]
        audit_record(
            tenant=adapter.tenant_id,
            action="adapter.pin",
            target=adapter,
            before={"pinned": numbers[0]},
            after={"pinned": numbers[1], "automatic": adapter.pinned_automatically},
        )

    def _note_serving(self, steps: list[Step], default: int | None) -> str:
        """Note in the last step that nothing can serve the version yet; return why, "" if something can.

        Args:
            default: version of the bare name, which keeps it; None if there is none.
        """
        row = AdapterVersion.objects.select_related("adapter__base_model").get(pk=self._version.pk)
        problem = serving_problem(base_model=row.adapter.base_model, ref=row.ref())
        if problem:
            kept = "" if default is None else f"; the bare name is pinned to version {default}"
            noted = set_step(steps, "publish", "warned", f"{problem[:_MAX_DETAIL]}{kept}")
            AdapterVersion.objects.filter(pk=row.pk).update(steps=noted)
        return problem

    def _step(self, name: str, status: StepStatus, detail: str = "") -> None:
        self._version.steps = set_step(self._version.steps, name, status, detail)
        self._heartbeat_at = timezone.now()
        self._update(steps=self._version.steps, heartbeat_at=self._heartbeat_at)

    def _heartbeat(self) -> None:
        """Write a heartbeat, at most every five seconds."""
        if timezone.now() - self._heartbeat_at > timedelta(seconds=5):
            self._heartbeat_now()

    def _heartbeat_now(self) -> None:
        """Write a heartbeat at once, before a step that may take a minute."""
        self._heartbeat_at = timezone.now()
        self._update(heartbeat_at=self._heartbeat_at)

    def _update(self, **values: Any) -> None:
        # The attempt count in the claim keeps out an attempt that was presumed dead and wakes up.
        claim = {"status": AdapterVersion.Status.VALIDATING, "attempts": self._version.attempts}
        if not AdapterVersion.objects.filter(pk=self._version.pk, **claim).update(**values):
            raise SupersededError

    def _stored(self, weights: str) -> tuple[StepStatus, str]:
        """Return the last step's status and text."""
        limit = max_adapter_bytes(self._base_model.modules, DEFAULT_RANK)
        if (size := self._store.size(weights) or 0) <= limit:
            return "done", "callable within a second"
        return "warned", (
            "callable within a second where the bundled worker runs with max_adapter_mib of "
            f"{-(-size >> 20)} or more: by default it refuses files of this base above {limit >> 20} MiB"
        )
