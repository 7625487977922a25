"""The e-mail about a change of an alarm's state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.core.mail import EmailMessage
from django.urls import reverse

from controlplane.monitoring.models import AlarmChange
from controlplane.platform.mail_notices import notice_mail_send, notices_due
from controlplane.platform.mail_server import MailServer
from controlplane.platform.mail_texts import mail_texts
from controlplane.tenants.models import Membership, User
from controlplane.tenants.roles import GRANTS, Permission

NOTIFY_TASK: Final = "monitoring.notify_alarm"
ADAPTER_ROLES: Final = [
    role for role, permissions in GRANTS.items() if Permission.ADAPTERS_WRITE in permissions
]
"""Roles that receive the mail: owners, admins and engineers."""


def alarm_notice_send(*, change_id: int, server: MailServer) -> bool:
    """Mails the tenant's owners, admins and engineers, or the operator's staff; see `mail_notices`."""
    rows = AlarmChange.objects.select_related("alarm__tenant", "alarm__adapter", "alarm__deployment")
    return notice_mail_send(rows=rows.filter(pk=change_id), server=server, messages=_messages)


def alarm_notices_due() -> list[int]:
    """List the keys of changes whose mail is due, oldest first; at most 1,000."""
    return notices_due(AlarmChange.objects.all())


def _messages(change: AlarmChange, notified: list[int]) -> Iterator[tuple[int, EmailMessage]]:
    alarm = change.alarm
    if alarm.tenant is None:
        page = reverse("console:staff-alarm", args=(alarm.pk,))
        people = User.objects.filter(is_staff=True, is_active=True)
    else:
        page = reverse("console:alarm", args=(alarm.tenant.pk, alarm.pk))
        members = Membership.objects.filter(tenant=alarm.tenant, role__in=ADAPTER_ROLES)
        people = User.objects.filter(is_active=True, pk__in=members.values("user"))
    context = {"change": change, "alarm": alarm, "page": f"{settings.GRAFTWORK.web_url}{page}"}
    subject, body = mail_texts("monitoring/alarm", context)
    remaining = people.exclude(pk__in=notified).order_by("email").values_list("pk", "email")
    for user_id, email in remaining:
        yield user_id, EmailMessage(subject, body, None, [email])
