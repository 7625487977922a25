"""Adapters: registration, the page of one adapter, its aliases, its deletion."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from controlplane.adapters.aliases import adapter_pin, alias_move, alias_remove, default_rollback
from controlplane.adapters.intake import files_by_name
from controlplane.adapters.lifecycle import adapter_delete, adapter_purge, adapter_restore, adapter_update
from controlplane.adapters.lineage import FIELDS as LINEAGE
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import (
    adapter_find,
    adapter_get,
    alias_change_newest,
    alias_get,
    default_number,
    version_get,
    version_list,
)
from controlplane.adapters.serializers import AdapterChange
from controlplane.adapters.services import adapter_check, adapter_register
from controlplane.artifacts.credentials.selectors import credential_list
from controlplane.artifacts.uploads.selectors import upload_get, upload_list
from controlplane.artifacts.uploads.services import upload_discard
from controlplane.catalog.selectors import base_model_get, base_model_list
from controlplane.console.adapters.canary_form import Refused, alias_rows_of
from controlplane.console.adapters.snippets import snippets
from controlplane.console.adapters.traffic_form import fallback_context
from controlplane.console.adapters.views.adapter_list import until
from controlplane.console.amounts import whole
from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed
from controlplane.console.pages import page_user, tenant_page
from controlplane.console.seen import seen_tag, unchanged
from controlplane.errors import InvalidInputError
from controlplane.metering.adapter_use import CALLED_DAYS, adapter_is_called
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

_FIELDS: Final = (
    "name",
    "base_model",
    "source",
    "uri",
    "hub_id",
    "revision",
    "credential",
    "make_default",
    *LINEAGE,
)
"""Fields of the registration form, except its files."""


@tenant_page(read=Permission.ADAPTERS_WRITE, write=Permission.ADAPTERS_WRITE)
def register(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the form, or register by files or by URI."""
    values = {field: request.POST.get(field, "") for field in _FIELDS}
    errors = FormErrors(request, conflict_field="name")
    if request.method == "GET":
        asked = {"name": request.GET.get("name", ""), "base_model": request.GET.get("base", "")}
        return _form(request, tenant, values | asked | {"source": "files"}, errors)
    with errors:
        registration = _registration(tenant, values)
        version = adapter_register(created_by=page_user(request), **registration, **_source(request, values))
        url = reverse("console:adapter", args=(tenant.pk, version.adapter.name))
        if request.headers.get("HX-Request") == "true":
            return HttpResponse(status=204, headers={"HX-Redirect": url})
        return redirect(url)
    return _form(request, tenant, values, errors)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def register_check(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Check the form before its files are sent: 204, or the form with its errors."""
    values = {field: request.POST.get(field, "") for field in _FIELDS}
    with FormErrors(request, conflict_field="name") as errors:
        adapter_check(
            size_bytes=whole(request.POST.get("size_bytes", "")) or 0, **_registration(tenant, values)
        )
        return HttpResponse(status=204)
    return _form(request, tenant, values, errors)


def _form(request: HttpRequest, tenant: Tenant, values: dict[str, str], errors: FormErrors) -> HttpResponse:
    known = adapter_find(tenant=tenant, name=values["name"].strip())
    context = {
        "values": values,
        "bases": base_model_list(),
        "credentials": credential_list(tenant=tenant),
        "uploads": upload_list(tenant=tenant),
        "default": known.default_version.number if known and known.default_version else None,
        "called": known is not None and adapter_is_called(tenant=tenant.pk, name=known.name),
        "days": CALLED_DAYS,
    }
    is_htmx = request.headers.get("HX-Request") == "true"
    return errors.render(
        "console/adapters/form.html" if is_htmx else "console/adapters/register.html", context
    )


def _registration(tenant: Tenant, values: dict[str, str]) -> dict[str, Any]:
    """Return what `adapter_check` and `adapter_register` both take.

    Raises:
        InvalidInputError, NotFoundError: no base model is chosen, or it is unknown.
    """
    if not values["base_model"]:
        raise InvalidInputError(
            _("choose the base model that the adapter was trained on"), field="base_model"
        )
    return {
        "tenant": tenant,
        "name": values["name"].strip(),
        "base_model": base_model_get(name=values["base_model"]),
        "lineage": {field: values[field].strip() for field in LINEAGE},
        "make_default": _make_default(tenant, values),
    }


def _make_default(tenant: Tenant, values: dict[str, str]) -> bool | None:
    """Return `make_default` for `adapter_register`; a bare name in use keeps its version by default."""
    match values["make_default"]:
        case "true":
            return True
        case "":
            return False if adapter_is_called(tenant=tenant.pk, name=values["name"].strip()) else None
        case _:
            return False


def _source(request: HttpRequest, values: dict[str, str]) -> dict[str, Any]:
    """Return the form's source as arguments of `adapter_register`."""
    match values["source"]:
        case "hub":
            if not values["hub_id"].strip():
                raise InvalidInputError(_("name the repository, as owner/name"), field="hub_id")
            revision = quote(values["revision"].strip(), safe="")
            uri = f"hf://{values['hub_id'].strip()}" + (f"@{revision}" if revision else "")
            return {"uri": uri, "credential": values["credential"]}
        case "uri":
            return {"uri": values["uri"], "credential": values["credential"]}
        case _ if uploads := request.POST.getlist("uploads"):
            return {"uploads": uploads}
        case _:
            return {"files": files_by_name(request.FILES.getlist("files"))}


@tenant_page(write=Permission.ADAPTERS_WRITE)
def upload_delete(request: HttpRequest, tenant: Tenant, upload_id: str) -> HttpResponse:
    """Discard an unfinished upload, which counts against the tenant's quota, with its received bytes."""
    upload = upload_get(tenant=tenant, upload_id=upload_id)
    upload_discard(upload=upload)
    messages.success(request, _("The upload of %(file)s was removed.") % {"file": upload.name})
    return redirect("console:adapter-register", tenant=tenant.pk)


@tenant_page(read=Permission.ADAPTERS_READ)
def detail(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Show one adapter."""
    return render(request, "console/adapters/detail.html", detail_context(tenant, name))


def detail_context(tenant: Tenant, name: str, *, refused: Refused | None = None) -> dict[str, Any]:
    """Return the adapter page's context; `refused` is a canary's refused form. Raises NotFoundError."""
    adapter = adapter_get(tenant=tenant, name=name)
    versions = adapter.live_versions
    ready = [version for version in versions if version.status == AdapterVersion.Status.READY]
    return {
        "adapter": adapter,
        "versions": versions,
        "newest": versions[0] if versions else None,
        "ready": ready,
        "aliases": alias_rows_of(adapter, refused),
        "default": adapter.default_version,
        "replaced": alias_change_newest(adapter=adapter, name=""),
        "labels_text": _about(adapter)["labels"],
        "notes_text": adapter.notes,
        "seen": seen_tag(_about(adapter)),
        "snippets": snippets(adapter.name),
        "card": _card(versions),
        "fallback": fallback_context(tenant, adapter),
        "deleted": [(item, until(item.deleted_at)) for item in version_list(adapter=adapter, deleted=True)],
    }


@tenant_page(read=Permission.ADAPTERS_READ)
def version_status(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Show the steps of a validation; once it has settled, the whole page reloads."""
    version = version_get(adapter=adapter_get(tenant=tenant, name=name), number=number)
    response = render(
        request, "console/adapters/steps.html", {"version": version, "adapter": version.adapter}
    )
    if version.is_settled:
        response["HX-Refresh"] = "true"
    return response


@tenant_page(write=Permission.ADAPTERS_WRITE)
def alias_set(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Create or move an alias."""
    adapter = adapter_get(tenant=tenant, name=name)
    alias, number = request.POST.get("alias", "").strip(), request.POST.get("number", "")
    with FormErrors(request) as errors:
        alias_move(adapter=adapter, name=alias, number=_number(number))
        text = _("%(adapter)s@%(alias)s now points to version %(number)s.")
        messages.success(request, text % {"adapter": name, "alias": alias, "number": number})
        return redirect("console:adapter", tenant=tenant.pk, name=name)
    context = detail_context(tenant, name) | {"alias_error": errors.text, "alias_value": alias}
    return errors.render("console/adapters/detail.html", context)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def alias_delete(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Delete an alias."""
    found = alias_get(adapter=adapter_get(tenant=tenant, name=name), name=alias)
    alias_remove(alias=found)
    messages.success(request, _("Alias %(alias)s was removed.") % {"alias": alias})
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def pin(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Set the version behind the bare name: a fixed one, or the newest ready one."""
    adapter, number = adapter_get(tenant=tenant, name=name), request.POST.get("number", "")
    with RefusalMessage(request):
        adapter_pin(adapter=adapter, number=_number(number) if number else None)
        messages.success(request, _("Default version updated."))
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def rollback(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Restore the previous default version; refused if another change was made in between."""
    adapter, newest = adapter_get(tenant=tenant, name=name), request.POST.get("newest", "")
    with RefusalMessage(request):
        adapter = default_rollback(adapter=adapter, newest=_number(newest) if newest else None)
        text = _("%(name)s points to version %(number)s again. The change takes effect within a second.")
        messages.success(request, text % {"name": name, "number": default_number(adapter=adapter)})
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Delete the adapter; it can be restored during the grace period."""
    adapter_delete(adapter=adapter_get(tenant=tenant, name=name))
    messages.success(request, _("Adapter %(name)s was deleted.") % {"name": name})
    return redirect("console:adapters", tenant=tenant.pk)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def restore(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Restore a deleted adapter."""
    adapter = adapter_get(tenant=tenant, name=name, deleted=True)
    with RefusalMessage(request):
        adapter_restore(adapter=adapter)
        messages.success(request, _("Adapter %(name)s was restored.") % {"name": name})
        return redirect("console:adapter", tenant=tenant.pk, name=name)
    return redirect("console:adapters", tenant=tenant.pk)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def purge(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Delete an adapter for good."""
    adapter_purge(adapter=adapter_get(tenant=tenant, name=name, deleted=True))
    messages.success(request, _("Adapter %(name)s was permanently deleted.") % {"name": name})
    return redirect("console:adapters", tenant=tenant.pk)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def update(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Replace labels and notes."""
    adapter = adapter_get(tenant=tenant, name=name)
    text, notes = request.POST.get("labels", ""), request.POST.get("notes", "")
    errors = FormErrors(request, shown=_about(adapter))
    with errors, unchanged(request, row=adapter, shown=lambda: _about(adapter_get(tenant=tenant, name=name))):
        labels = dict(_label(part.strip()) for part in text.split(",") if part.strip())
        sent = parsed(AdapterChange, {"labels": labels, "notes": notes})
        adapter_update(adapter=adapter, **({"notes": ""} | sent))
        messages.success(request, _("Saved."))
        return redirect("console:adapter", tenant=tenant.pk, name=name)
    context = detail_context(tenant, name)
    context |= {"labels_error": errors.text, "labels_text": text, "notes_text": notes}
    return errors.render("console/adapters/detail.html", context)


def _card(versions: list[AdapterVersion]) -> SafeString | str:
    """Return the newest ready version's card, as text if it could not be rendered. Lists load no cards."""
    ready = next((version for version in versions if version.is_callable), None)
    if ready is None or not ready.card:
        return ""
    if ready.card_html:
        return mark_safe(ready.card_html)  # noqa: S308  # card_html's own tags around escaped text
    return format_html("<pre>{}</pre>", ready.card)


def _about(adapter: Adapter) -> dict[str, str]:
    """Return labels and notes as the form's values."""
    # Sorted by name, because PostgreSQL does not keep the order of an object's keys.
    labels = ", ".join(f"{key}={value}" for key, value in sorted(adapter.labels.items()))
    return {"labels": labels, "notes": adapter.notes}


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidInputError(_("write labels as comma-separated key=value pairs"), field="labels")
    return key.strip(), value.strip()


def _number(text: str) -> int:
    if (number := whole(text)) is None:
        raise InvalidInputError(_("choose a version"), field="number")
    return number
