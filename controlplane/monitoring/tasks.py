"""Celery tasks of monitoring."""

from __future__ import annotations

from celery import shared_task

from controlplane.deployments.copies.services import removed_copies_forget
from controlplane.monitoring.cloudwatch.export import metrics_export
from controlplane.monitoring.evaluation import alarms_evaluate, changes_forget
from controlplane.monitoring.notices import NOTIFY_TASK, alarm_notice_send, alarm_notices_due
from controlplane.monitoring.quarantines.notices import (
    QUARANTINE_TASK,
    quarantine_notice_send,
    quarantine_notices_due,
)
from controlplane.monitoring.quarantines.services import quarantines_forget, quarantines_sync
from controlplane.platform.mail_server import MailServer


@shared_task(name="monitoring.evaluate_alarms")
def evaluate_alarms() -> int:
    """Evaluates the alarms whose last period has ended; returns how many changed their state."""
    return alarms_evaluate()


@shared_task(name=NOTIFY_TASK, acks_late=True)
def notify_alarm(change_id: int) -> None:
    """Mails about one change of an alarm's state, if that is due."""
    with MailServer() as server:
        alarm_notice_send(change_id=change_id, server=server)


@shared_task(name="monitoring.notify_alarms", acks_late=True)
def notify_alarms() -> None:
    """Sends the mails that failed, or were not enqueued, before."""
    with MailServer() as server:
        for change_id in alarm_notices_due():
            alarm_notice_send(change_id=change_id, server=server)
        for quarantine_id in quarantine_notices_due():
            quarantine_notice_send(quarantine_id=quarantine_id, server=server)


@shared_task(name="monitoring.sync_quarantines")
def sync_quarantines() -> int:
    """Records and announces the adapters that gateways hold back; returns how many are new."""
    return quarantines_sync()


@shared_task(name=QUARANTINE_TASK, acks_late=True)
def notify_quarantine(quarantine_id: int) -> None:
    """Mails about one adapter that is held back, if that is due."""
    with MailServer() as server:
        quarantine_notice_send(quarantine_id=quarantine_id, server=server)


@shared_task(name="monitoring.export_metrics")
def export_metrics() -> int:
    """Exports metrics of SageMaker targets to CloudWatch; returns how many minutes were sent."""
    return metrics_export()


@shared_task(name="monitoring.forget", acks_late=True)
def forget() -> int:
    """Deletes old changes of alarms' states, quarantines, and rows of removed copies; returns how many."""
    return changes_forget() + quarantines_forget() + removed_copies_forget()
