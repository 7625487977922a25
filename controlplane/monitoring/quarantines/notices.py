"""The e-mail about an adapter that gateways hold back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import Q
from django.urls import reverse

from controlplane.monitoring.models import AdapterQuarantine
from controlplane.monitoring.notices import ADAPTER_ROLES
from controlplane.platform.mail_notices import notice_mail_send, notices_due
from controlplane.platform.mail_server import MailServer
from controlplane.platform.mail_texts import mail_texts
from controlplane.tenants.models import Membership, User

QUARANTINE_TASK: Final = "monitoring.notify_quarantine"


def quarantine_notice_send(*, quarantine_id: int, server: MailServer) -> bool:
    """Mails staff, and the tenant's owners, admins and engineers; see `mail_notices`."""
    rows = AdapterQuarantine.objects.filter(pk=quarantine_id)
    return notice_mail_send(rows=rows, server=server, messages=_messages)


def quarantine_notices_due() -> list[int]:
    """List the keys of quarantines whose mail is due, oldest first; at most 1,000."""
    return notices_due(AdapterQuarantine.objects.all())


def _messages(row: AdapterQuarantine, notified: list[int]) -> Iterator[tuple[int, EmailMessage]]:
    members = Membership.objects.filter(tenant=row.tenant_slug, role__in=ADAPTER_ROLES)
    people = User.objects.filter(Q(is_staff=True) | Q(pk__in=members.values("user")), is_active=True)
    remaining = people.exclude(pk__in=notified).order_by("email").values_list("pk", "email", "is_staff")
    for user_id, email, is_staff in remaining:
        own = reverse("console:adapter", args=(row.tenant_slug, row.adapter))
        page = reverse("console:staff-quarantines") if is_staff else own
        context = {
            "row": row,
            "number": len(row.copies),
            "is_staff": is_staff,
            "page": f"{settings.GRAFTWORK.web_url}{page}",
        }
        subject, body = mail_texts("monitoring/quarantine", context)
        yield user_id, EmailMessage(subject, body, None, [email])
