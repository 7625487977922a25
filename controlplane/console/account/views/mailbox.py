"""The demo's mailbox: e-mails that were sent on a machine without a mail server. 404 elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.platform.mailbox import mailbox_read

_MOST: Final = 50


@never_cache
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Show the newest e-mails, without a login: people who log in for the first time need the links."""
    folder = getattr(settings, "EMAIL_FILE_PATH", None)
    if not settings.GRAFTWORK.show_mail_links or not folder:
        raise Http404("there is no such page here")
    return render(request, "account/mailbox.html", {"mails": mailbox_read(Path(folder), most=_MOST)})
