"""Celery's edge of signing up: the link by e-mail."""

from __future__ import annotations

from celery import shared_task

from controlplane.platform.mail_server import MailServer
from controlplane.sign_up.mail import sign_up_send
from controlplane.sign_up.selectors import sign_ups_unsent
from controlplane.sign_up.services import sign_ups_forget


@shared_task(name="sign_up.send", acks_late=True)
def send(sign_up_id: int) -> None:
    """Sends one link, unless it is sent, or void by now."""
    with MailServer() as server:
        sign_up_send(sign_up_id=sign_up_id, server=server)


@shared_task(name="sign_up.send_due", acks_late=True)
def send_due() -> None:
    """Sends what could not be sent, or enqueued, before; forgets what has expired."""
    sign_ups_forget()
    with MailServer() as server:
        for sign_up_id in sign_ups_unsent():
            sign_up_send(sign_up_id=sign_up_id, server=server)
