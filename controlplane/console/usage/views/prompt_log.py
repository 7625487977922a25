"""The prompt log: turning it on and off, its retention, and the prompt of one request."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.console.amounts import whole
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import page_user, tenant_page
from controlplane.errors import NotFoundError, UnsealError
from controlplane.metering.prompt_log.selectors import kept_count, kept_until, prompt_log_get, prompt_log_of
from controlplane.metering.prompt_log.services import (
    MOST_A_DAY,
    MOST_DAYS,
    kept_read,
    prompt_log_end,
    prompt_log_set,
)
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

_DAYS: Final = (1, 3, 7, 14, MOST_DAYS)


@tenant_page(read=Permission.PROMPTS_READ, write=Permission.PROMPTS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the log's state, and the form that turns it on or changes its retention."""
    errors = FormErrors(request, conflict_field="days")
    if request.method == "POST":
        with errors:
            days = whole(request.POST.get("days", "")) or 0
            prompt_log_set(tenant=tenant, days=days, begun_by=page_user(request))
            messages.success(request, _("Prompt logging is on."))
            return redirect("console:prompt-log", tenant=tenant.pk)
    log = prompt_log_of(tenant=tenant)
    context = {"log": log, "count": kept_count(tenant=tenant), "choices": _DAYS, "most_a_day": MOST_A_DAY}
    return errors.render("console/prompt_log.html", context)


@tenant_page(write=Permission.PROMPTS_WRITE)
def end(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Turn the log off, and delete its entries."""
    try:
        prompt_log_end(tenant=tenant)
    except NotFoundError:
        messages.info(request, _("Prompt logging is already off."))
    else:
        messages.success(request, _("Prompt logging is off. All stored prompts were deleted."))
    return redirect("console:prompt-log", tenant=tenant.pk)


@tenant_page(write=Permission.PROMPTS_READ)
def read(request: HttpRequest, tenant: Tenant, request_id: str) -> HttpResponse:
    """Show the prompt and answer of one request. It is a POST, since the reading is recorded."""
    context: dict[str, object] = {}
    try:
        kept, context["found"] = kept_read(tenant=tenant, request_id=request_id)
        context["until"] = kept_until(kept, prompt_log_get(tenant=tenant))
    except UnsealError as error:
        context["error"] = str(error)
    return render(request, "console/requests/prompt.html", context)
