"""Who validates an adapter version, and what becomes of it when an attempt fails or is lost."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Final

from django.db.models import F, Q
from django.utils import timezone

from controlplane.adapters.attempt import SupersededError, ValidationAttempt
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import VALIDATE_TASK, staging_discard
from controlplane.adapters.steps import StepStatus, first_steps
from controlplane.errors import InvalidInputError, RefusedError, UnavailableError
from controlplane.queue import enqueue

logger = logging.getLogger(__name__)
_ABANDONED: Final = timedelta(minutes=2)
_MAX_ATTEMPTS: Final = 5
_OUTAGE: Final = timedelta(days=1)
"""How long a version waits for a store or source that does not answer."""


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
    version = AdapterVersion.objects.select_related("adapter__base_model").filter(pk=version_id).first()
    if not claimed or version is None:
        return
    try:
        ValidationAttempt(version).run()
    except SupersededError:
        _step_aside(version)
    except (RefusedError, InvalidInputError) as error:
        _refuse(version, str(error))
    except UnavailableError as error:
        # Not the adapter's fault and not ours, so it counts by time, not by attempts.
        if timezone.now() - version.created_at > _OUTAGE:
            _refuse(version, f"{error}; it stayed so for a day: register it again")
        else:
            logger.warning("validation of %s waits: %s", version, error)
            _wait(version, str(error))
    except Exception as error:
        if version.attempts >= _MAX_ATTEMPTS:
            _refuse(
                version, f"validation failed {version.attempts} times, last by: {error}; register it again"
            )
        else:
            _wait(version, "an internal error")
        raise


def validation_resume() -> int:
    """Enqueues what waits too long: its message was lost, or its worker died. Returns how many.

    Also removes the staged files of settled versions whose worker died before it could.
    """
    before = timezone.now() - _ABANDONED
    AdapterVersion.objects.filter(status=AdapterVersion.Status.VALIDATING, heartbeat_at__lt=before).update(
        status=AdapterVersion.Status.PENDING
    )
    settled = [AdapterVersion.Status.READY, AdapterVersion.Status.REFUSED]
    for version in AdapterVersion.objects.filter(status__in=settled, heartbeat_at__lt=before).exclude(
        staging=""
    )[:100]:
        staging_discard(version=version)
    recent = timezone.now() - timedelta(seconds=10)
    waiting = AdapterVersion.objects.filter(status=AdapterVersion.Status.PENDING, created_at__lt=recent)
    waiting = waiting.filter(Q(heartbeat_at=None) | Q(heartbeat_at__lt=recent))
    ids = list(waiting.values_list("pk", flat=True)[:1000])
    for version_id in ids:
        enqueue(VALIDATE_TASK, version_id=version_id)
    return len(ids)


def _refuse(version: AdapterVersion, reason: str) -> None:
    """Records why, and leaves none of the files."""
    if _end(version, AdapterVersion.Status.REFUSED, "failed", reason, reason=reason):
        staging_discard(version=version)
    else:
        _step_aside(version)


def _wait(version: AdapterVersion, why: str) -> None:
    """Back into the queue; the step that was reached says what it waits for."""
    detail = f"{why}; it is tried again"
    if not _end(version, AdapterVersion.Status.PENDING, "waiting", detail, heartbeat_at=timezone.now()):
        _step_aside(version)


def _end(version: AdapterVersion, status: str, step: StepStatus, detail: str, **values: Any) -> bool:
    """Ends this attempt, if it still has the version."""
    steps = [
        {**item, "status": step, "detail": detail} if item["status"] == "running" else item
        for item in version.steps
    ]
    claim = AdapterVersion.objects.filter(
        pk=version.pk, status=AdapterVersion.Status.VALIDATING, attempts=version.attempts
    )
    return bool(claim.update(status=status, steps=steps, **values))


def _step_aside(version: AdapterVersion) -> None:
    """Removes only what is this attempt's alone: an import's copy, or an upload whose version is gone."""
    if version.source or not AdapterVersion.objects.filter(pk=version.pk).exists():
        staging_discard(version=version)
