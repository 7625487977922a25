"""The invitation's e-mail."""

from __future__ import annotations

from django.conf import settings
from django.core.mail import EmailMessage
from django.urls import reverse

from controlplane.platform.mail_server import MailServer, Outcome
from controlplane.platform.mail_texts import mail_texts
from controlplane.tenants.members.selectors import invitation_token
from controlplane.tenants.members.services import invitation_claim, invitation_sent


def invitation_send(*, invitation_id: int, server: MailServer) -> bool:
    """Sends the link, at least once; True when it went out now. The periodic task tries again.

    Raises:
        MailServerAwayError: nothing can be sent at present.
    """
    invitation = invitation_claim(invitation_id=invitation_id)
    if invitation is None:
        return False
    path = reverse("console:invitation", args=(invitation_token(invitation),))
    context = {"invitation": invitation, "url": f"{settings.GRAFTWORK.web_url}{path}"}
    subject, body = mail_texts("members/invitation", context)
    if server.send(EmailMessage(subject, body, None, [invitation.email])) is not Outcome.SENT:
        return False
    invitation_sent(invitation=invitation)
    return True
