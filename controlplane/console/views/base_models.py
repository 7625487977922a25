"""The operator's pages of base models: the catalogue, one model with its files, variants and copies."""

from __future__ import annotations

from typing import Any

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
from controlplane.console.pages import field_errors, staff_page
from controlplane.errors import ControlPlaneError, InvalidInputError

BUSY = (BaseModel.Digest.PENDING, BaseModel.Digest.RUNNING)


@require_http_methods(["GET", "POST"])
@staff_page
def index(request: HttpRequest) -> HttpResponse:
    """The catalogue, and the form that adds to it."""
    fields = ("name", "source", "served_name", "licence")
    values = {field: request.POST.get(field, "").strip() for field in fields}
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            base_model = base_model_register(
                name=values["name"], source=values["source"], licence=values["licence"][:100],
                served_name=values["served_name"][:200] or None,
            )  # fmt: skip
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="name")
        else:
            return redirect("console:staff-base-model", name=base_model.name)
    context = {"bases": base_model_list(), "values": values, "errors": errors}
    return render(request, "staff/base_models.html", context, status=422 if errors else 200)


@require_http_methods(["GET", "POST"])
@staff_page
def detail(request: HttpRequest, name: str) -> HttpResponse:
    """One model; a POST replaces its licence and rank limit."""
    base_model = base_model_get(name=name)
    if request.method == "POST":
        try:
            rank = request.POST.get("max_lora_rank", "")
            if not (rank.isascii() and rank.isdigit() and len(rank) < 6):
                raise InvalidInputError(_("a rank is a whole number"), field="max_lora_rank")
            licence = request.POST.get("licence", "").strip()[:100]
            base_model_update(base_model=base_model, licence=licence, max_lora_rank=int(rank))
        except ControlPlaneError as error:
            return _page(request, base_model, {"errors": field_errors(error, conflict_field="form")}, 422)
        messages.success(request, _("Saved."))
        return redirect("console:staff-base-model", name=name)
    return _page(request, base_model, {})


@require_http_methods(["GET", "POST"])
@staff_page
def digests(request: HttpRequest, name: str) -> HttpResponse:
    """GET: the files, asked for again while they are read. POST: has them read anew."""
    base_model = base_model_get(name=name)
    if request.method == "POST":
        digest_request(base_model=base_model)
        return redirect("console:staff-base-model", name=name)
    context = {"base": base_model, "busy": base_model.digest_status in BUSY}
    return render(request, "staff/digests.html", context)


@require_POST
@staff_page
def variants(request: HttpRequest, name: str) -> HttpResponse:
    """Adds a variant, or removes the one that `remove` names."""
    base_model = base_model_get(name=name)
    fields = ("name", "dtype", "quantization", "source")
    values = {field: request.POST.get(field, "").strip()[:500] for field in fields}
    try:
        if removed := request.POST.get("remove"):
            variant_remove(variant=variant_get(base_model=base_model, name=removed))
        else:
            if not values["dtype"] or len(values["dtype"]) > 20 or len(values["quantization"]) > 40:
                raise InvalidInputError(_("give the dtype, such as int8"), field="dtype")
            variant_create(base_model=base_model, **values)
    except ControlPlaneError as error:
        return _page(request, base_model, {"variant_error": str(error), "values": values}, 422)
    return redirect("console:staff-base-model", name=name)


def _page(request: HttpRequest, base: BaseModel, more: dict[str, Any], status: int = 200) -> HttpResponse:
    context = {"base": base, "busy": base.digest_status in BUSY, **more}
    return render(request, "staff/base_model.html", context, status=status)
