"""Adapters that gateways hold back: the list, and the release."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.console.pages import staff_page
from controlplane.errors import ConflictError
from controlplane.monitoring.quarantines.services import quarantine_get, quarantine_list, quarantine_release

_SHOWN: Final = 100


@staff_page("GET")
def index(request: HttpRequest) -> HttpResponse:
    """List the newest quarantines."""
    context = {"quarantines": quarantine_list()[:_SHOWN]}
    return render(request, "console/monitoring/quarantines.html", context)


@staff_page("POST")
def release(request: HttpRequest, quarantine: int) -> HttpResponse:
    """Release an adapter version."""
    found = quarantine_get(quarantine_id=quarantine)
    try:
        quarantine_release(quarantine=found)
    except ConflictError:
        messages.info(request, _("This quarantine is already over."))
    else:
        messages.success(request, _("Released. Gateways accept its requests again within seconds."))
    return redirect("console:staff-quarantines")
