"""The e-mail about an endpoint that was given up: nobody would look for what no longer comes."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from controlplane.platform.mail_server import MailServer, Outcome
from controlplane.platform.mail_texts import mail_texts
from controlplane.tenants.models import Membership
from controlplane.tenants.roles import GRANTS, Permission
from controlplane.webhooks.models import WebhookEndpoint

logger = logging.getLogger(__name__)

NOTIFY_TASK: Final = "webhooks.notify_disabled"
RETRY_AFTER: Final = dt.timedelta(minutes=2)
"""When an attempt counts as failed: no sooner than a task is interrupted. It doubles with each attempt."""
ATTEMPTS: Final = 12
"""In nearly three days. No more: where a message is taken and the answer lost, each repeats it."""
_TOLD: Final = [role for role, permissions in GRANTS.items() if Permission.WEBHOOKS_WRITE in permissions]
"""Roles of those who can do something about it: owners and admins."""


def notice_send(*, endpoint_id: str, server: MailServer) -> bool:
    """Writes to each of the tenant's owners and admins, at least once; True when nobody is left now.

    Who has been written to, or is refused for good, is noted after each message, so that an attempt which
    fails at one person repeats nothing to the others. The periodic task tries again.

    Raises:
        MailServerAwayError: nothing can be sent at present.
    """
    now = timezone.now()
    mine = WebhookEndpoint.objects.filter(pk=endpoint_id, notify_at__lte=now)
    if not mine.update(notify_at=now + RETRY_AFTER, notify_attempts=F("notify_attempts") + 1):
        return False
    endpoint = WebhookEndpoint.objects.select_related("tenant").get(pk=endpoint_id)
    # Unless it was enabled meanwhile, or given up anew.
    given_up = WebhookEndpoint.objects.filter(pk=endpoint_id, disabled_at=endpoint.disabled_at)
    if endpoint.notify_attempts < ATTEMPTS:
        given_up.update(notify_at=now + RETRY_AFTER * 2 ** (endpoint.notify_attempts - 1))
    else:
        given_up.update(notify_at=None)
    notified, left = list(endpoint.notified or []), 0
    for user_id, message in _messages(endpoint, notified):
        if server.send(message) is Outcome.LATER:
            left += 1
            continue
        notified.append(user_id)
        given_up.update(notified=notified)
    if left:
        logger.warning("%d recipients still await the notice about endpoint %s", left, endpoint_id)
        return False
    given_up.update(notify_at=None)
    return True


def notices_due() -> list[str]:
    """List the ids of endpoints with due notices, oldest first."""
    due = WebhookEndpoint.objects.filter(notify_at__lte=timezone.now())
    return list(due.order_by("notify_at").values_list("pk", flat=True)[:1000])


def _messages(endpoint: WebhookEndpoint, notified: list[int]) -> Iterator[tuple[int, EmailMessage]]:
    """By user id. One message each: nobody is shown the others' addresses."""
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
