"""Exports metrics of SageMaker targets to CloudWatch, minute by minute.

PutMetricData adds to what CloudWatch has, so each batch must be sent once. A minute's batches are stored
before the first is sent, and each is removed when CloudWatch has taken it. A failed batch is sent again; one
whose answer was lost, or whose process died before the removal, counts twice.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from typing import Any, Final

from django.db.models import Q
from django.utils import timezone

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.monitoring.cloudwatch.metric_data import MINUTE, Datum, metric_batches
from controlplane.monitoring.models import MetricExport

logger = logging.getLogger(__name__)
LAG: Final = dt.timedelta(seconds=60)
"""Delay after the end of a minute, in which its usage events arrive."""
OLDEST: Final = dt.timedelta(hours=3)
"""Minutes that could not be sent for so long are skipped."""
_AT_ONCE: Final = 30
"""Most minutes of one run, so that a backlog does not keep the queue busy."""
_LEASE: Final = dt.timedelta(minutes=10)
_RETRY: Final = dt.timedelta(seconds=30)
"""Delay after the first failure; it doubles with each, up to _LONGEST_RETRY."""
_LONGEST_RETRY: Final = dt.timedelta(minutes=15)

Connect = Callable[[Target], ServicesAccount]


def metrics_export(*, now: dt.datetime | None = None, connect: Connect = ServicesAccount.from_target) -> int:
    """Export the complete minutes of every target with a namespace; return how many minutes were sent.

    A target that fails is tried again later and does not stop the others.
    """
    moment = now or timezone.now()
    # A target whose export is turned on again begins anew.
    MetricExport.objects.filter(target__metrics_namespace="").delete()
    targets = Target.objects.filter(kind=Target.Kind.SAGEMAKER).exclude(metrics_namespace="")
    sent = 0
    for target in targets.order_by("pk"):
        try:
            sent += _export(target, moment, connect)
        except Exception:
            # Its lease keeps it from being tried again at once.
            logger.exception("metrics of target %s were not exported", target)
    return sent


def _export(target: Target, now: dt.datetime, connect: Connect) -> int:
    latest = (now - LAG).replace(second=0, microsecond=0)
    row, _made = MetricExport.objects.get_or_create(target=target, defaults={"exported_to": latest})
    mine = MetricExport.objects.filter(pk=row.pk)
    free = mine.filter(Q(lease_until=None) | Q(lease_until__lt=now), next_at__lte=now)
    if not free.update(lease_until=now + _LEASE):
        return 0
    row.refresh_from_db()
    sent = 0
    try:
        account = connect(target)
        try:
            while row.exported_to < latest and sent < _AT_ONCE:
                _send_minute(account, target, row, latest)
                sent += 1
        finally:
            account.close()
    except ProvisioningError as error:
        delay = min(_RETRY * 2 ** min(row.failures, 10), _LONGEST_RETRY)
        logger.warning("metrics of target %s were not exported, next attempt in %s: %s", target, delay, error)
        mine.update(failures=row.failures + 1, next_at=now + delay, error=str(error), lease_until=None)
    else:
        mine.update(failures=0, next_at=now, error="", lease_until=None)
    return sent


def _send_minute(account: ServicesAccount, target: Target, row: MetricExport, latest: dt.datetime) -> None:
    """Send the minute that begins at `row.exported_to`, and store the progress after each batch."""
    if row.pending is None:
        if row.exported_to < latest - OLDEST:
            skipped = latest - OLDEST
            logger.error("metrics of target %s from %s to %s are skipped", target, row.exported_to, skipped)
            row.exported_to = skipped
        row.pending = metric_batches(target=target, minute=row.exported_to)
        row.save(update_fields=["exported_to", "pending"])
    while row.pending:
        account.ask(
            "cloudwatch",
            "put_metric_data",
            target.name,
            Namespace=target.metrics_namespace,
            MetricData=[_dated(datum) for datum in row.pending[0]],
        )
        row.pending = row.pending[1:]
        row.save(update_fields=["pending"])
    row.exported_to, row.pending = row.exported_to + MINUTE, None
    row.save(update_fields=["exported_to", "pending"])


def _dated(datum: Datum) -> dict[str, Any]:
    return {**datum, "Timestamp": dt.datetime.fromtimestamp(datum["Timestamp"], dt.UTC)}
