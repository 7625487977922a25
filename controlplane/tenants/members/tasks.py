"""Celery's edge of members: invitations by e-mail."""

from __future__ import annotations

from celery import shared_task

from controlplane.platform.mail_server import MailServer
from controlplane.tenants.members.mail import invitation_send
from controlplane.tenants.members.selectors import invitations_unsent


@shared_task(name="members.send_invitation", acks_late=True)
def send_invitation(invitation_id: int) -> None:
    """Sends one invitation, unless it is sent, or void by now."""
    with MailServer() as server:
        invitation_send(invitation_id=invitation_id, server=server)


@shared_task(name="members.send_invitations", acks_late=True)
def send_invitations() -> None:
    """Sends what could not be sent, or enqueued, before."""
    with MailServer() as server:
        for invitation_id in invitations_unsent():
            invitation_send(invitation_id=invitation_id, server=server)
