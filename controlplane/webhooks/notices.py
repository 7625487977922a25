"""The e-mail about an endpoint that was given up: nobody would look for what no longer comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import Q
from django.urls import reverse

from controlplane.platform.mail_notices import notice_mail_send, notices_due
from controlplane.platform.mail_server import MailServer
from controlplane.platform.mail_texts import mail_texts
from controlplane.tenants.models import Membership
from controlplane.tenants.roles import GRANTS, Permission
from controlplane.webhooks.models import WebhookEndpoint

NOTIFY_TASK: Final = "webhooks.notify_disabled"
_TOLD: Final = [role for role, permissions in GRANTS.items() if Permission.WEBHOOKS_WRITE in permissions]
"""Roles of those who can do something about it: owners and admins."""


def notice_send(*, endpoint_id: str, server: MailServer) -> bool:
    """Mails the tenant's owners and admins; see `platform.mail_notices`."""
    return notice_mail_send(
        rows=WebhookEndpoint.objects.select_related("tenant").filter(pk=endpoint_id),
        server=server,
        messages=_messages,
        # Unless it was enabled meanwhile, or disabled anew.
        still=lambda endpoint: Q(disabled_at=endpoint.disabled_at),
    )


def endpoint_notices_due() -> list[str]:
    """List the ids of endpoints with due notices, oldest first."""
    return notices_due(WebhookEndpoint.objects.all())


def _messages(endpoint: WebhookEndpoint, notified: list[int]) -> Iterator[tuple[int, EmailMessage]]:
    page = reverse("console:webhook", args=(endpoint.tenant_id, endpoint.pk))
    # Path and query are a secret of many receivers', and mail is read by many servers.
    parts = urlsplit(endpoint.url)
    host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    context = {"endpoint": endpoint, "host": host, "page": f"{settings.GRAFTWORK.web_url}{page}"}
    subject, body = mail_texts("webhooks/disabled", context)
    members = Membership.objects.filter(tenant=endpoint.tenant, role__in=_TOLD, user__is_active=True)
    people = members.exclude(user__in=notified).order_by("user__email").values_list("user_id", "user__email")
    for user_id, email in people:
        yield user_id, EmailMessage(subject, body, None, [email])
