"""Stores finished outputs in the artifact store by content digest, and removes unneeded ones."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from django.db import transaction
from django.utils import timezone

from controlplane.artifacts.store import ByteStream, artifact_store
from controlplane.catalog.models import Variant
from controlplane.errors import ControlPlaneError, RefusedError, UnavailableError
from controlplane.optimization.claims import Claim
from controlplane.optimization.models import OPEN, Artifact, OptimizationJob, Status
from controlplane.optimization.outputs import output_remove

logger = logging.getLogger(__name__)
LINEAGE: Final = "lineage.json"
CHECKPOINT: Final = "checkpoint"
UNNEEDED_AFTER: Final = timedelta(hours=1)
State = Artifact.State


def artifact_keep(claim: Claim, output: Path, *, heartbeat: Callable[[], None]) -> Artifact:
    """Upload a whole output to the artifact store, unless it is stored already.

    The row is written first, so that files left by a process that dies are found and removed. Only
    `artifact_settle` marks the artifact as stored, in the transaction that starts to need it.

    Raises:
        RefusedError: a file differs from its digest in the output's lineage.
        UnavailableError: the store does not answer, or another process stores or removes the same files.
    """
    lineage = json.loads((output / LINEAGE).read_text(encoding="utf-8"))
    files = {str(name): (int(size), str(sha256)) for name, (size, sha256) in lineage["files"].items()}
    artifact = _take(claim, str(lineage["digest"]), files)
    if artifact.state == State.STORED:
        return artifact
    store, folder = artifact_store(), artifact_key(artifact.sha256)
    # A failed attempt may have left partial files; after a power cut even their length may be right.
    store.remove(folder)
    for name, (size, sha256) in sorted(files.items()):
        with (output / name).open("rb") as stream:
            digesting = _Digesting(stream, heartbeat)
            store.put(f"{folder}/{name}", digesting, limit=size)
        if digesting.sha256 != sha256:
            raise RefusedError(f"{name} is not what was written: the disk of this host may be failing")
    with (output / LINEAGE).open("rb") as stream:
        store.put(f"{folder}/{LINEAGE}", stream, limit=(output / LINEAGE).stat().st_size)
    return artifact


def artifact_key(sha256: str) -> str:
    """Return the artifact's folder in the store."""
    return f"optimized/{sha256}"


def checkpoint_uri(artifact: Artifact) -> str:
    """Return the checkpoint's source for the catalogue: a folder's path for a local store, else s3://."""
    if artifact.target_id is not None:
        return artifact.uri
    parts = urlsplit(artifact.uri)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)) / CHECKPOINT)
    return f"{artifact.uri}{CHECKPOINT}/"


def artifacts_collect() -> int:
    """Remove unneeded artifacts and partial uploads of dead processes; return how many.

    An artifact whose store does not answer is left for the next run.
    """
    removed = 0
    for artifact in Artifact.objects.filter(needed_at__lt=timezone.now() - UNNEEDED_AFTER):
        try:
            removed += _collect(artifact)
        except ControlPlaneError as error:
            logger.warning("artifact %s is not removed yet: %s", artifact.sha256, error)
    return removed


def _collect(artifact: Artifact) -> bool:
    if not _condemn(artifact):
        return False
    if artifact.target is None:
        artifact_store().remove(artifact_key(artifact.sha256))
    else:
        output_remove(artifact.target, artifact.uri)
    Artifact.objects.filter(pk=artifact.pk, state=State.REMOVING).delete()
    return True


@transaction.atomic
def _take(claim: Claim, digest: str, files: dict[str, tuple[int, str]]) -> Artifact:
    """Get or create the artifact of these files (name -> size, digest), and link it to the job.

    Raises UnavailableError: another job is storing the same files, or they are being removed.
    """
    artifact, made = Artifact.objects.select_for_update().get_or_create(
        pk=digest,
        defaults={
            "uri": artifact_store().uri(artifact_key(digest)),
            "size": sum(size for size, _ in files.values()),
            "files": {name: sha256 for name, (_, sha256) in files.items()},
        },
    )
    if artifact.state == State.REMOVING:
        raise UnavailableError("the same files, which nothing needed, are just being removed")
    others = artifact.jobs.filter(status__in=OPEN).exclude(pk=claim.pk)
    if not made and artifact.state == State.STORING and (other := others.first()) is not None:
        raise UnavailableError(f"{other} is storing the same files")
    Artifact.objects.filter(pk=digest).update(needed_at=timezone.now())
    claim.write(artifact_id=digest)
    return artifact


@transaction.atomic
def _condemn(artifact: Artifact) -> bool:
    """Mark the artifact for removal unless something needs it; afterwards no job may start to use it."""
    row = Artifact.objects.select_for_update().filter(pk=artifact.pk).first()
    if row is None:
        return False
    needing = row.jobs.filter(status__in=(*OPEN, Status.DONE))
    if needing.exists() or Variant.objects.filter(source=checkpoint_uri(row)).exists():
        row.needed_at = timezone.now()
        row.save(update_fields=["needed_at"])
        return False
    OptimizationJob.objects.filter(artifact=row).update(artifact=None)
    row.state = State.REMOVING
    row.save(update_fields=["state"])
    return True


class _Digesting:
    """A stream that hashes what is read and calls the heartbeat at each read."""

    def __init__(self, stream: ByteStream, heartbeat: Callable[[], None]) -> None:
        self._stream, self._heartbeat, self._digest = stream, heartbeat, hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        self._heartbeat()
        return data


def lineage_of(output: Path) -> dict[str, Any]:
    """Return the output's provenance (lineage.json) without its list of files."""
    lineage: dict[str, Any] = json.loads((output / LINEAGE).read_text(encoding="utf-8"))
    return {name: value for name, value in lineage.items() if name != "files"}
