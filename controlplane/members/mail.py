"""The invitation's e-mail."""

from __future__ import annotations

from django.conf import settings
from django.core.mail import EmailMessage
from django.template.loader import render_to_string
from django.urls import reverse

from controlplane.mail_server import MailServer, Outcome
from controlplane.members.selectors import invitation_token
from controlplane.members.services import invitation_claim, invitation_sent


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
    # In one line: a line break in a tenant's name would begin another header.
    subject = " ".join(render_to_string("members/invitation_subject.txt", context).split())
    body = render_to_string("members/invitation.txt", context)
    if server.send(EmailMessage(subject, body, None, [invitation.email])) is not Outcome.SENT:
        return False
    invitation_sent(invitation=invitation)
    return True
