"""The operator's pages of base models: the catalogue, one model with its files, variants and copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from contracts.capabilities.engines import base_offers
from controlplane.catalog.api import BaseModelChange, BaseModelInput, VariantInput
from controlplane.catalog.digests import digest_request
from controlplane.catalog.models import BaseModel
from controlplane.catalog.refresh import base_model_refresh
from controlplane.catalog.selectors import base_model_get, base_model_list, variant_get
from controlplane.catalog.services import (
    base_model_register,
    base_model_update,
    variant_create,
    variant_remove,
)
from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed, posted
from controlplane.console.pages import staff_page
from controlplane.deployments.capabilities import RunningEngine, base_needs
from controlplane.deployments.copies.api import CopyInput
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.deployments.models import Copy
from controlplane.deployments.selectors import copy_get
from controlplane.errors import InvalidInputError, NotFoundError

BY_URL = (Copy.Kind.WORKER, Copy.Kind.OPENAI_HTTP)
"""Kinds of copies that can be added by URL; SageMaker's are added by deployments or the REST API."""
_COPY_FIELDS = ("kind", "url", "engine", "engine_version", "max_rank")
_ENGINE_TITLES = {
    Copy.Engine.WORKER: gettext_lazy("Graftwork worker"),
    Copy.Engine.VLLM: "vLLM",
    Copy.Engine.TGI: "text-generation-inference",
    Copy.Engine.TENSORRT_LLM: "TensorRT-LLM",
    Copy.Engine.NEURON: "Neuron",
}
BUSY = (BaseModel.Digest.PENDING, BaseModel.Digest.RUNNING)


@staff_page("GET", "POST")
def index(request: HttpRequest) -> HttpResponse:
    """Show the catalogue, and the form that adds to it."""
    values, errors = posted(request, BaseModelInput), FormErrors(request, conflict_field="name")
    if request.method == "POST":
        with errors:
            base_model = base_model_register(**parsed(BaseModelInput, values))
            return redirect("console:staff-base-model", name=base_model.name)
    return errors.render("staff/base_models.html", {"bases": base_model_list(), "values": values})


@staff_page("GET", "POST")
def detail(request: HttpRequest, name: str) -> HttpResponse:
    """Show one model; a POST replaces its licence, rank limit and dropped parameters."""
    base_model = base_model_get(name=name)
    errors, shown = FormErrors(request), dict[str, str]()
    if request.method == "POST":
        values = posted(request, BaseModelChange)
        shown = {"dropped": values["dropped_parameters"]}
        with errors:
            dropped = values["dropped_parameters"].replace(",", " ").split()
            sent = parsed(BaseModelChange, {**values, "dropped_parameters": dropped})
            base_model_update(base_model=base_model, **({"licence": ""} | sent))
            messages.success(request, _("Saved."))
            return redirect("console:staff-base-model", name=name)
    return _page(base_model, errors, shown)


@staff_page("GET", "POST")
def digests(request: HttpRequest, name: str) -> HttpResponse:
    """GET: list the files, polled while they are hashed. POST: hash them again."""
    base_model = base_model_get(name=name)
    if request.method == "POST":
        digest_request(base_model=base_model)
        return redirect("console:staff-base-model", name=name)
    context = {"base": base_model, "busy": base_model.digest_status in BUSY}
    return render(request, "staff/digests.html", context)


@staff_page("POST")
def refresh(request: HttpRequest, name: str) -> HttpResponse:
    """Read the checkpoint's configuration and headers again."""
    with RefusalMessage(request):
        base_model_refresh(base_model=base_model_get(name=name))
        messages.success(request, _("Read again. Adapters registered from now on are checked by it."))
    return redirect("console:staff-base-model", name=name)


@staff_page("POST")
def variants(request: HttpRequest, name: str) -> HttpResponse:
    """Add a variant, or remove the one in `remove`."""
    base_model = base_model_get(name=name)
    values = posted(request, VariantInput)
    with FormErrors(request) as errors:
        if removed := request.POST.get("remove"):
            variant_remove(variant=variant_get(base_model=base_model, name=removed))
        else:
            variant_create(base_model=base_model, **parsed(VariantInput, values))
        return redirect("console:staff-base-model", name=name)
    return _page(base_model, errors, {"variant_error": errors.text, "values": values})


@staff_page("POST")
def copies(request: HttpRequest, name: str) -> HttpResponse:
    """Add a copy by its server's URL, or remove the copy in `remove`."""
    base_model = base_model_get(name=name)
    values = {field: request.POST.get(field, "").strip() for field in _COPY_FIELDS}
    loads = {"loads_adapters": request.POST.get("loads_adapters") == "on"}
    removed = _copy_of(base_model, request.POST["remove"]) if request.POST.get("remove") else None
    with FormErrors(request) as errors:
        if removed is not None:
            copy_remove(copy=removed)
        elif values["kind"] not in BY_URL:
            raise InvalidInputError(_("choose the kind of server"), field="kind")
        else:
            # An empty field states nothing: the token of a server that is added again stays.
            token = request.POST.get("token", "")
            sent = parsed(CopyInput, {"base_model": name, **values, "token": token, **loads})
            copy_register(
                base_model=base_model,
                kind=sent["kind"],
                url=sent["url"],
                loads_adapters=sent["loads_adapters"],
                engine=RunningEngine(sent["engine"], sent["engine_version"], sent.get("max_rank")),
                token=sent.get("token"),
            )
        messages.success(request, _("Saved. Gateways apply the change within a second."))
        return redirect("console:staff-base-model", name=name)
    return _page(base_model, errors, {"copy_error": errors.text, "copy_values": {**values, **loads}})


def _copy_of(base_model: BaseModel, copy_id: str) -> Copy:
    """Return the model's copy. Raises NotFoundError, also for another model's copy."""
    copy = copy_get(copy_id=copy_id)
    if copy.base_model_id != base_model.pk:
        raise NotFoundError(f"{base_model.name} has no copy {copy_id!r}")
    return copy


def _page(base: BaseModel, errors: FormErrors, more: Mapping[str, Any]) -> HttpResponse:
    engines = base_offers(base_needs(base))
    context = {
        "base": base,
        "busy": base.digest_status in BUSY,
        "kinds": BY_URL,
        "engines": engines,
        "copy_engines": _ENGINE_TITLES,
        **more,
    }
    return errors.render("staff/base_model.html", context)
