"""One key's restrictions and expiry."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from contracts.keys import ENDPOINTS
from controlplane.console.pages import field_errors, page_access, tenant_page
from controlplane.console.seen import seen_again, seen_tag, unchanged
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.tenants.access import may_change_key
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_get
from controlplane.tenants.services import api_key_update

_LISTS: Final = ("allowed_models", "allowed_networks", "allowed_endpoints")
_MINUTE: Final = "%Y-%m-%dT%H:%M"


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.KEYS_READ, Permission.KEYS_WRITE)
def detail(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Show the key; POST changes its expiry and restrictions, and an empty field lifts a restriction."""
    api_key = api_key_get(tenant=tenant, public_id=public_id)

    def current() -> dict[str, str]:
        return _form_values(api_key_get(tenant=tenant, public_id=public_id))

    values, errors = current(), dict[str, str]()
    seen = seen_tag(values)
    if request.method == "POST":
        values = _sent(request)
        try:
            with unchanged(request, row=api_key, shown=current):
                api_key_update(api_key=api_key, by=page_access(request), **_changes(current(), values))
        except ControlPlaneError as error:
            errors, seen = field_errors(error, conflict_field="key"), seen_again(request, error)
        else:
            messages.success(request, _("Key updated. The change takes effect within a second."))
            return redirect("console:key", tenant=tenant.pk, public_id=public_id)
    context = {
        "key": api_key,
        "changeable": api_key.is_live and may_change_key(page_access(request), api_key),
        "values": values,
        "chosen": words(values["allowed_endpoints"]) or (),
        "errors": errors,
        "seen": seen,
        "endpoints": ENDPOINTS,
    }
    return render(request, "console/keys/detail.html", context, status=422 if errors else 200)


def words(text: object) -> list[str] | None:
    """Split a list at commas or spaces; None for an empty field, which restricts nothing."""
    return [word for word in re.split(r"[\s,]+", str(text)) if word] or None


def _form_values(api_key: ApiKey) -> dict[str, str]:
    expires = api_key.expires_at
    shown = {name: ", ".join(getattr(api_key, name) or ()) for name in _LISTS}
    return {**shown, "expires_at": "" if expires is None else expires.astimezone(dt.UTC).strftime(_MINUTE)}


def _sent(request: HttpRequest) -> dict[str, str]:
    sent = {name: request.POST.get(name, "").strip() for name in ("expires_at", *_LISTS)}
    return sent | {"allowed_endpoints": ", ".join(request.POST.getlist("allowed_endpoints"))}


def _changes(before: Mapping[str, str], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the changed values as the service's arguments; an unchanged expiry keeps its seconds."""
    changed = {name: text for name, text in values.items() if text != before[name]}
    return {name: _moment(text) if name == "expires_at" else words(text) for name, text in changed.items()}


def _moment(text: str) -> dt.datetime | None:
    """Parse a time, in UTC unless it has an offset. Raises InvalidInputError."""
    if not text:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
        return moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError):  # OverflowError: the offset leads out of the calendar
        raise InvalidInputError(_("a time (UTC) such as 2027-01-31T18:00"), field="expires_at") from None
