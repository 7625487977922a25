"""Computes the digests of a checkpoint's files in a Celery task that resumes after the last finished file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from controlplane.catalog.checkpoint_sources import CheckpointSource, checkpoint_source
from controlplane.catalog.models import BaseModel, CheckpointFile
from controlplane.errors import ControlPlaneError, UnavailableError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue

logger = logging.getLogger(__name__)
DIGEST_TASK: Final = "catalog.digest"
_CHUNK: Final = 4 << 20
_HEARTBEAT: Final = timedelta(seconds=10)
_ABANDONED: Final = timedelta(minutes=2)
Digest = BaseModel.Digest


@transaction.atomic
def digest_request(*, base_model: BaseModel) -> None:
    """Discard all digests of a base model and enqueue their computation."""
    CheckpointFile.objects.filter(base_model=base_model).delete()
    BaseModel.objects.filter(pk=base_model.pk).update(
        digest_status=Digest.PENDING, digest_reason="", checkpoint_sha256=""
    )
    enqueue(DIGEST_TASK, base_model_id=base_model.pk)
    audit_record(tenant="", action="base_model.digest", target=base_model, after={"requested": True})


def digest_run(*, base_model_id: int) -> None:
    """Compute the missing digests; do nothing if another worker does, or none is missing."""
    now = timezone.now()
    # Redelivery and beat may both call this; the conditional UPDATE admits one of them.
    claimed = BaseModel.objects.filter(pk=base_model_id, digest_status=Digest.PENDING).update(
        digest_status=Digest.RUNNING, digest_beat_at=now
    )
    base_model = BaseModel.objects.filter(pk=base_model_id).first()
    if not claimed or base_model is None:
        return
    try:
        source = checkpoint_source(base_model.source)
        sizes = source.sizes()
        done = {
            item.name: item.sha256 for item in base_model.files.all() if sizes.get(item.name) == item.size
        }
        for name in sorted(sizes):
            if name not in done:
                done[name] = _file_digest(base_model, source, name)
                CheckpointFile.objects.update_or_create(
                    base_model=base_model, name=name, defaults={"size": sizes[name], "sha256": done[name]}
                )
        base_model.files.exclude(name__in=sizes).delete()
        _settle(base_model, Digest.DONE, "", checkpoint_digest({name: done[name] for name in sizes}))
    except UnavailableError as error:
        logger.warning("digests of %s are delayed: %s", base_model, error)
        _settle(base_model, Digest.PENDING, str(error), "")
    except (ControlPlaneError, OSError) as error:
        _settle(base_model, Digest.FAILED, str(error), "")


def digests_resume() -> int:
    """Enqueue pending digests, and those of dead workers; return how many."""
    before = timezone.now() - _ABANDONED
    BaseModel.objects.filter(digest_status=Digest.RUNNING, digest_beat_at__lt=before).update(
        digest_status=Digest.PENDING
    )
    waiting = list(BaseModel.objects.filter(digest_status=Digest.PENDING).values_list("pk", flat=True))
    for base_model_id in waiting:
        enqueue(DIGEST_TASK, base_model_id=base_model_id)
    return len(waiting)


def checkpoint_digest(files: Mapping[str, str]) -> str:
    """Return a checkpoint's identity: SHA-256 over `<sha256>  <name>\\n` of its files, sorted by name."""
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_digest(base_model: BaseModel, source: CheckpointSource, name: str) -> str:
    digest, heartbeat_at = hashlib.sha256(), timezone.now()
    with source.open(name) as stream:
        while data := stream.read(_CHUNK):
            digest.update(data)
            if timezone.now() - heartbeat_at > _HEARTBEAT:
                heartbeat_at = timezone.now()
                BaseModel.objects.filter(pk=base_model.pk).update(digest_beat_at=heartbeat_at)
    return digest.hexdigest()


def _settle(base_model: BaseModel, status: str, reason: str, sha256: str) -> None:
    # After a new request the row is pending, and that request's worker settles it.
    BaseModel.objects.filter(pk=base_model.pk, digest_status=Digest.RUNNING).update(
        digest_status=status, digest_reason=reason[:1000], checkpoint_sha256=sha256
    )
