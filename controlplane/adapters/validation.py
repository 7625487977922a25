"""Claims, runs and retries validation attempts of adapter versions."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Final

from celery.exceptions import SoftTimeLimitExceeded
from django.db import DataError, transaction
from django.db.models import F, Q
from django.utils import timezone

from controlplane.adapters.attempt import SupersededError, ValidationAttempt
from controlplane.adapters.lifecycle import artifacts_discard
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import VALIDATE_TASK, staging_discard
from controlplane.adapters.sources import source_discard
from controlplane.adapters.steps import StepStatus, first_steps
from controlplane.errors import InvalidInputError, RefusedError, UnavailableError, UnsealError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)
_ABANDONED: Final = timedelta(minutes=2)
_MAX_ATTEMPTS: Final = 5
_MAX_LOST: Final = 3
"""Most attempts whose process died. A restart of the workers may cost one; three point at the adapter."""
_GIVEN_UP: Final = (
    "validation failed {} times with an internal error: register the adapter again later, and contact "
    "your operator if the error persists"
)
_UNSTORABLE: Final = (
    "the adapter's files hold a text or number that cannot be stored: save the adapter again, or ask "
    "your operator, who finds the value in the log"
)
_REQUEUE: Final = timedelta(minutes=2)
_LONGEST_WAIT: Final = timedelta(minutes=10)
_OUTAGE: Final = timedelta(days=1)
"""How long a version waits for a store or source that does not answer."""


def version_validate(*, version_id: int) -> None:
    """Validate one version; do nothing if another worker holds it, or it is settled or gone.

    Raises:
        Exception: an internal error; the version waits for another attempt.
    """
    versions = AdapterVersion.objects.select_related("adapter__base_model", "adapter__tenant")
    # Redelivery, beat and a second worker may all call this; the conditional UPDATE admits one of them.
    with transaction.atomic():
        claimed = AdapterVersion.objects.filter(pk=version_id, status=AdapterVersion.Status.PENDING).update(
            status=AdapterVersion.Status.VALIDATING,
            heartbeat_at=timezone.now(),
            attempts=F("attempts") + 1,
            steps=first_steps(),
        )
        version = versions.filter(pk=version_id).first()
    if not claimed or version is None:
        return
    try:
        ValidationAttempt(version).run()
    except SupersededError:
        _step_aside(version)
    except (RefusedError, InvalidInputError, UnsealError) as error:
        _refuse(version, str(error))
    except SoftTimeLimitExceeded:
        _refuse(
            version, "validation exceeded its time limit: register the adapter again, or upload the files"
        )
    except UnavailableError as error:
        # An outage is limited by time, not by attempts.
        if timezone.now() - version.created_at > _OUTAGE:
            _refuse(version, f"{error}; this lasted for a day: register the adapter again")
        else:
            logger.warning("validation of %s waits: %s", version, error)
            _wait(version, str(error))
    except (DataError, UnicodeError):
        # The same files lead to the same error, so another attempt cannot succeed.
        _refuse(version, _UNSTORABLE)
        raise
    except Exception:
        if version.attempts >= _MAX_ATTEMPTS:
            _refuse(version, _GIVEN_UP.format(version.attempts))
        else:
            _wait(version, "an internal error")
        raise


def validation_resume() -> int:
    """Enqueue versions whose message was lost or whose worker died; return how many.

    Also removes the staged files of settled versions whose worker died before it could.
    """
    now = timezone.now()
    before = now - _ABANDONED
    lost = AdapterVersion.objects.filter(status=AdapterVersion.Status.VALIDATING, heartbeat_at__lt=before)
    for version in lost.select_related("adapter__tenant")[:1000]:
        _give_up_or_retry(version)
    settled = [AdapterVersion.Status.READY, AdapterVersion.Status.REFUSED]
    for version in AdapterVersion.objects.filter(status__in=settled, heartbeat_at__lt=before).exclude(
        staging=""
    )[:100]:
        staging_discard(version=version)
    recent = now - timedelta(seconds=10)
    waiting = AdapterVersion.objects.filter(status=AdapterVersion.Status.PENDING, created_at__lt=recent)
    waiting = waiting.filter(Q(retry_at=None) | Q(retry_at__lte=now))
    ids = list(waiting.values_list("pk", flat=True)[:1000])
    # Delay the next enqueue, so that a long queue holds each version once or twice.
    AdapterVersion.objects.filter(pk__in=ids).update(retry_at=now + _REQUEUE)
    for version_id in ids:
        enqueue(VALIDATE_TASK, version_id=version_id)
    return len(ids)


def _give_up_or_retry(version: AdapterVersion) -> None:
    """Retry a version whose attempt has no heartbeat, or refuse it after too many lost attempts."""
    count = version.lost_attempts + 1
    if count < _MAX_LOST:
        claim = AdapterVersion.objects.filter(
            pk=version.pk, status=AdapterVersion.Status.VALIDATING, attempts=version.attempts
        )
        claim.update(status=AdapterVersion.Status.PENDING, lost_attempts=count, retry_at=None)
        return
    reached = next((step["title"] for step in version.steps if step["status"] == "running"), "the start")
    logger.error("validation of %s was lost %d times, at %s", version, count, reached)
    _refuse(
        version,
        f"the process that validated it died {count} times, last at {reached!r}: it probably needs more"
        " memory or disk space than available. Send the two files instead of an archive, or a smaller"
        " adapter; contact your operator if the error persists",
        lost_attempts=count,
    )


def _refuse(version: AdapterVersion, reason: str, **values: Any) -> None:
    """Refuse the version for `reason` and remove its files."""
    # A tensor's name may hold characters that PostgreSQL refuses.
    reason = reason.replace("\0", "\\0").encode(errors="backslashreplace").decode()
    values |= {"reason": reason, "sha256": ""}
    if _end(version, AdapterVersion.Status.REFUSED, "failed", reason, **values):
        staging_discard(version=version)
        source_discard(version.source, tenant=version.adapter.tenant)
        if version.sha256:
            artifacts_discard([version.sha256])
    else:
        _step_aside(version)


def _wait(version: AdapterVersion, why: str) -> None:
    """Put the version back into the queue; its current step shows the reason."""
    detail, now = f"{why}; validation will be retried", timezone.now()
    # Back off by 10 s, 20 s, 40 s, and so on.
    wait = min(timedelta(seconds=10 * 2 ** min(version.attempts - 1, 10)), _LONGEST_WAIT)
    values = {"heartbeat_at": now, "retry_at": now + wait}
    if not _end(version, AdapterVersion.Status.PENDING, "waiting", detail, **values):
        _step_aside(version)


@transaction.atomic
def _end(version: AdapterVersion, status: str, step: StepStatus, detail: str, **values: Any) -> bool:
    """End this attempt; return False if it lost its claim."""
    steps = [
        {**item, "status": step, "detail": detail} if item["status"] == "running" else item
        for item in version.steps
    ]
    claim = AdapterVersion.objects.filter(
        pk=version.pk, status=AdapterVersion.Status.VALIDATING, attempts=version.attempts
    )
    ended = bool(claim.update(status=status, steps=steps, **values))
    if ended and status == AdapterVersion.Status.REFUSED:
        tenant = version.adapter.tenant_id
        data: dict[str, Any] = {"status": status, "reason": detail}
        audit_record(tenant=tenant, action="adapter_version.refuse", target=version, after=data)
        data = {"adapter": version.adapter.name, "version": version.number, "reason": detail}
        event_emit(tenant=tenant, type="adapter.version.refused", data=data)
    return ended


def _step_aside(version: AdapterVersion) -> None:
    """Remove only files that no other attempt uses: an import's copy, or those of a removed version."""
    is_gone = not AdapterVersion.objects.filter(pk=version.pk).exists()
    if version.source or is_gone:
        staging_discard(version=version)
    if is_gone and version.sha256:
        artifacts_discard([version.sha256])
