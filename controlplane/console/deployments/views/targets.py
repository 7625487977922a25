"""The operator's page of targets, where deployments run."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed, posted
from controlplane.console.pages import staff_page
from controlplane.deployments.models import Target
from controlplane.deployments.selectors import target_get, target_list
from controlplane.deployments.targets.api import TargetInput
from controlplane.deployments.targets.regions import REGIONS
from controlplane.deployments.targets.services import TAKES, target_create, target_remove


def own_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that the chosen kind takes: the form hides fields of other kinds, and keeps them."""
    kind = values["kind"]
    others = {name for other, names in TAKES.items() if other != kind for name in names}
    if kind != Target.Kind.OPENAI_HTTP:
        others.add("token")
    return {name: text for name, text in values.items() if name not in others}


@staff_page("GET", "POST")
def targets(request: HttpRequest) -> HttpResponse:
    """List the targets of deployments, and the form that adds one."""
    values, errors = posted(request, TargetInput), FormErrors(request, conflict_field="name")
    values["kind"] = values["kind"] or Target.Kind.LOCAL
    if request.method == "POST":
        with errors:
            sent = {**own_values(values), "urls": values["urls"].split()}
            target_create(**parsed(TargetInput, sent))
            messages.success(request, _("Target %(name)s was added.") % {"name": values["name"]})
            return redirect("console:staff-targets")
    context = {"targets": target_list().prefetch_related("deployments"), "values": values, "regions": REGIONS}
    return errors.render("console/deployments/targets.html", context)


@staff_page("POST")
def target_delete(request: HttpRequest, target: str) -> HttpResponse:
    """Delete a target without deployments."""
    with RefusalMessage(request):
        target_remove(target=target_get(name=target))
    return redirect("console:staff-targets")
