"""Links of e-mails on pages, for a demo that has no mail server."""

from __future__ import annotations

from django.conf import settings


def link_shown(path: str) -> str:
    """The address that an e-mail gives for `path` if GRAFTWORK_SHOW_MAIL_LINKS is set, else ""."""
    return f"{settings.GRAFTWORK.web_url}{path}" if settings.GRAFTWORK.show_mail_links else ""
