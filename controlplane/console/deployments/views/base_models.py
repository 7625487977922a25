"""The operator's pages of base models: the catalogue, one model with its files, variants and copies."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.catalog.digests import digest_request
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_get, base_model_list, variant_get
from controlplane.catalog.services import (
    base_model_register,
    base_model_update,
    variant_create,
    variant_remove,
)
from controlplane.console.entered import entered, fitting
from controlplane.console.pages import field_errors, staff_page
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.deployments.models import Copy
from controlplane.deployments.selectors import copy_get
from controlplane.errors import ControlPlaneError, InvalidInputError, NotFoundError

BY_URL = (Copy.Kind.WORKER, Copy.Kind.OPENAI_HTTP)
"""Kinds of copies that can be added by URL; SageMaker's are added by deployments or the REST API."""
BUSY = (BaseModel.Digest.PENDING, BaseModel.Digest.RUNNING)

_MOST: Final = {"name": 63, "source": 500, "served_name": 200, "licence": 100}
_MOST_DROPPED: Final = 6500
"""Longest text: 100 names of parameters."""
_VARIANT_MOST: Final = {"name": 63, "dtype": 20, "quantization": 40, "source": 500}


@require_http_methods(["GET", "POST"])
@staff_page
def index(request: HttpRequest) -> HttpResponse:
    """Show the catalogue, and the form that adds to it."""
    values = {field: request.POST.get(field, "").strip() for field in _MOST}
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            fits = fitting(values, _MOST)
            base_model = base_model_register(
                name=fits["name"],
                source=fits["source"],
                licence=fits["licence"],
                served_name=fits["served_name"] or None,
            )
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="name")
        else:
            return redirect("console:staff-base-model", name=base_model.name)
    context = {"bases": base_model_list(), "values": values, "errors": errors}
    return render(request, "staff/base_models.html", context, status=422 if errors else 200)


@require_http_methods(["GET", "POST"])
@staff_page
def detail(request: HttpRequest, name: str) -> HttpResponse:
    """Show one model; a POST replaces its licence, rank limit and dropped parameters."""
    base_model = base_model_get(name=name)
    if request.method == "POST":
        try:
            rank = request.POST.get("max_lora_rank", "")
            if not (rank.isascii() and rank.isdigit() and len(rank) < 6):
                raise InvalidInputError(_("a rank is a whole number"), field="max_lora_rank")
            licence = entered(request, "licence", most=_MOST["licence"])
            dropped = entered(request, "dropped_parameters", most=_MOST_DROPPED).replace(",", " ").split()
            base_model_update(
                base_model=base_model, licence=licence, max_lora_rank=int(rank), dropped_parameters=dropped
            )
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="form")
            shown = {"errors": errors, "dropped": request.POST.get("dropped_parameters", "")}
            return _page(request, base_model, shown, 422)
        messages.success(request, _("Saved."))
        return redirect("console:staff-base-model", name=name)
    return _page(request, base_model, {})


@require_http_methods(["GET", "POST"])
@staff_page
def digests(request: HttpRequest, name: str) -> HttpResponse:
    """GET: list the files, polled while they are hashed. POST: hash them again."""
    base_model = base_model_get(name=name)
    if request.method == "POST":
        digest_request(base_model=base_model)
        return redirect("console:staff-base-model", name=name)
    context = {"base": base_model, "busy": base_model.digest_status in BUSY}
    return render(request, "staff/digests.html", context)


@require_POST
@staff_page
def variants(request: HttpRequest, name: str) -> HttpResponse:
    """Add a variant, or remove the one in `remove`."""
    base_model = base_model_get(name=name)
    fields = ("name", "dtype", "quantization", "source")
    values = {field: request.POST.get(field, "").strip() for field in fields}
    try:
        if removed := request.POST.get("remove"):
            variant_remove(variant=variant_get(base_model=base_model, name=removed))
        else:
            if not values["dtype"] or len(values["dtype"]) > 20 or len(values["quantization"]) > 40:
                raise InvalidInputError(_("give the dtype, such as int8"), field="dtype")
            variant_create(base_model=base_model, **fitting(values, _VARIANT_MOST))
    except ControlPlaneError as error:
        return _page(request, base_model, {"variant_error": str(error), "values": values}, 422)
    return redirect("console:staff-base-model", name=name)


@require_POST
@staff_page
def copies(request: HttpRequest, name: str) -> HttpResponse:
    """Add a copy by its server's URL, or remove the copy in `remove`."""
    base_model = base_model_get(name=name)
    values = {"kind": request.POST.get("kind", ""), "url": request.POST.get("url", "").strip()}
    loads = request.POST.get("loads_adapters") == "on"
    try:
        if removed := request.POST.get("remove"):
            copy_remove(copy=_copy_of(base_model, removed))
        else:
            if values["kind"] not in BY_URL:
                raise InvalidInputError(_("choose the kind of server"), field="kind")
            url = entered(request, "url", most=500)
            copy_register(base_model=base_model, kind=values["kind"], url=url, loads_adapters=loads)
    except NotFoundError:
        raise
    except ControlPlaneError as error:
        context = {"copy_error": str(error), "copy_values": values | {"loads_adapters": loads}}
        return _page(request, base_model, context, 422)
    messages.success(request, _("Saved. Gateways apply the change within a second."))
    return redirect("console:staff-base-model", name=name)


def _copy_of(base_model: BaseModel, copy_id: str) -> Copy:
    """Return the model's copy. Raises NotFoundError, also for another model's copy."""
    copy = copy_get(copy_id=copy_id)
    if copy.base_model_id != base_model.pk:
        raise NotFoundError(f"{base_model.name} has no copy {copy_id!r}")
    return copy


def _page(request: HttpRequest, base: BaseModel, more: dict[str, Any], status: int = 200) -> HttpResponse:
    context = {"base": base, "busy": base.digest_status in BUSY, "kinds": BY_URL, **more}
    return render(request, "staff/base_model.html", context, status=status)
