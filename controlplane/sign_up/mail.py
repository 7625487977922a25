"""Sends the sign-up e-mail with the link; an address with an account gets a notice instead."""

from __future__ import annotations

from django.conf import settings
from django.core.mail import EmailMessage
from django.urls import reverse

from controlplane.platform.mail_server import MailServer, Outcome
from controlplane.platform.mail_texts import mail_texts
from controlplane.sign_up.selectors import sign_up_token
from controlplane.sign_up.services import sign_up_claim, sign_up_sent
from controlplane.tenants.models import User


def sign_up_send(*, sign_up_id: int, server: MailServer) -> bool:
    """Send the link, at least once; return True if it was sent now. The periodic task retries.

    Raises:
        MailServerAwayError: the mail server is unavailable.
    """
    sign_up = sign_up_claim(sign_up_id=sign_up_id)
    if sign_up is None:
        return False
    web = settings.GRAFTWORK.web_url
    is_known = User.objects.filter(email=sign_up.email).exists()
    path = reverse("console:sign-up-confirm", args=(sign_up_token(sign_up),))
    context = {
        "is_known": is_known,
        "sign_up": sign_up,
        "url": f"{web}{path}",
        "login": f"{web}{reverse('console:login')}",
        "reset": f"{web}{reverse('account_reset_password')}",
    }
    subject, body = mail_texts("sign_up/confirm", context)
    if server.send(EmailMessage(subject, body, None, [sign_up.email])) is Outcome.LATER:
        return False
    # A permanently refused message also counts as sent: a retry would be refused again.
    sign_up_sent(sign_up=sign_up)
    return True
