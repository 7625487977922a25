"""Adapters: the list, registering, the page of one, its aliases."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.selectors import adapter_get, adapter_list, alias_get, version_get
from controlplane.adapters.services import (
    adapter_delete,
    adapter_pin,
    adapter_register,
    alias_move,
    alias_remove,
    files_by_name,
)
from controlplane.catalog.selectors import base_model_get, base_model_list
from controlplane.console.pages import field_errors, tenant_page
from controlplane.console.snippets import snippets
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.tenants.models import Tenant, User


@require_GET
@tenant_page
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The list; while something is being validated its table asks for itself again."""
    rows = [(item, next(iter(item.versions.all()), None)) for item in adapter_list(tenant=tenant)]
    busy = any(newest is not None and not newest.is_settled for _adapter, newest in rows)
    is_poll = request.headers.get("HX-Target") == "adapter-rows"
    template = "console/adapters/rows.html" if is_poll else "console/adapters/index.html"
    return render(request, template, {"rows": rows, "busy": busy})


@require_http_methods(["GET", "POST"])
@tenant_page
def register(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The form, and the registration by files or by URI."""
    values = {
        "name": request.GET.get("name", ""),
        "base_model": request.GET.get("base", ""),
        "source": "files",
        "uri": "",
    }
    errors: dict[str, str] = {}
    if request.method == "POST":
        values = {key: request.POST.get(key, "") for key in values}
        try:
            version = _register(request, tenant, values)
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="name")
        else:
            url = reverse("console:adapter", args=(tenant.pk, version.adapter.name))
            if request.headers.get("HX-Request") == "true":
                return HttpResponse(status=204, headers={"HX-Redirect": url})
            return redirect(url)
    context = {"values": values, "errors": errors, "bases": base_model_list()}
    is_htmx = request.headers.get("HX-Request") == "true"
    template = "console/adapters/form.html" if is_htmx else "console/adapters/register.html"
    return render(request, template, context, status=422 if errors else 200)


def _register(request: HttpRequest, tenant: Tenant, values: dict[str, str]) -> AdapterVersion:
    assert isinstance(request.user, User)
    if not values["base_model"]:
        raise InvalidInputError(
            _("choose the base model that the adapter was trained on"), field="base_model"
        )
    by_uri = values["source"] == "uri"
    return adapter_register(
        tenant=tenant,
        name=values["name"].strip(),
        base_model=base_model_get(name=values["base_model"]),
        files=None if by_uri else files_by_name(request.FILES.getlist("files")),
        uri=values["uri"] if by_uri else None,
        created_by=request.user,
    )


@require_GET
@tenant_page
def detail(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """One adapter."""
    return render(request, "console/adapters/detail.html", _detail_context(tenant, name))


def _detail_context(tenant: Tenant, name: str) -> dict[str, object]:
    adapter = adapter_get(tenant=tenant, name=name)
    versions = list(adapter.versions.all())
    ready = [version for version in versions if version.status == AdapterVersion.Status.READY]
    return {
        "adapter": adapter,
        "versions": versions,
        "newest": versions[0] if versions else None,
        "ready": ready,
        "default": adapter.default_version,
        "snippets": snippets(adapter.name),
    }


@require_GET
@tenant_page
def version_status(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """The steps of one validation; once it has settled the whole page is asked for anew."""
    version = version_get(adapter=adapter_get(tenant=tenant, name=name), number=number)
    response = render(
        request, "console/adapters/steps.html", {"version": version, "adapter": version.adapter}
    )
    if version.is_settled:
        response["HX-Refresh"] = "true"
    return response


@require_POST
@tenant_page
def alias_set(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Makes or moves an alias."""
    adapter = adapter_get(tenant=tenant, name=name)
    alias, number = request.POST.get("alias", "").strip(), request.POST.get("number", "")
    try:
        alias_move(adapter=adapter, name=alias, number=_number(number))
    except ControlPlaneError as error:
        context = _detail_context(tenant, name) | {"alias_error": str(error), "alias_value": alias}
        return render(request, "console/adapters/detail.html", context, status=422)
    text = _("%(adapter)s@%(alias)s now means version %(number)s.")
    messages.success(request, text % {"adapter": name, "alias": alias, "number": number})
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@require_POST
@tenant_page
def alias_delete(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Removes an alias."""
    alias_remove(alias=alias_get(adapter=adapter_get(tenant=tenant, name=name), name=alias))
    messages.success(request, _("Alias %(alias)s is removed.") % {"alias": alias})
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@require_POST
@tenant_page
def pin(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Says what the bare name means: one version, or the newest ready one."""
    adapter, number = adapter_get(tenant=tenant, name=name), request.POST.get("number", "")
    try:
        adapter_pin(adapter=adapter, number=_number(number) if number else None)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("The bare name now means what you chose."))
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@require_POST
@tenant_page
def delete(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Removes the adapter; its usage records stay."""
    adapter_delete(adapter=adapter_get(tenant=tenant, name=name))
    messages.success(request, _("Adapter %(name)s is deleted.") % {"name": name})
    return redirect("console:adapters", tenant=tenant.pk)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise InvalidInputError(_("choose a version"), field="number")
    return int(text)
