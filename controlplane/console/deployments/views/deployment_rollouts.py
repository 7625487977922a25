"""The operator's pages of deployment rollouts: the form that starts one, and its controls."""

from __future__ import annotations

import json
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from contracts import strict_json
from controlplane.console.pages import field_errors, staff_page
from controlplane.deployments.models import Deployment, DeploymentRollout, Target
from controlplane.deployments.rollouts.policy import RolloutPolicy
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.services import (
    deployment_rollout_abort,
    deployment_rollout_pause,
    deployment_rollout_resume,
    deployment_rollout_start,
)
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import ConflictError, ControlPlaneError, InvalidInputError

_ACTIONS: Final = {
    "pause": deployment_rollout_pause,
    "resume": deployment_rollout_resume,
    "abort": deployment_rollout_abort,
}
_JSON: Final = ("options", "environment")
_NUMBERS: Final = ("batch_copies", "wait_seconds", "max_error_increase")


@require_http_methods(["GET", "POST"])
@staff_page
def start(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show and handle the form that starts a rollout: the copies' new settings, and the strategy."""
    found = deployment_get(name=deployment)
    values, errors = _as_it_is(found), {}
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in values}
        try:
            deployment_rollout_start(
                deployment=found,
                strategy=values["strategy"],
                change=_change(found, values),
                policy=_policy(values),
            )
        except ControlPlaneError as error:
            refused = field_errors(error, conflict_field="form")
            errors = {field.removeprefix("policy."): text for field, text in refused.items()}
        else:
            return redirect("console:staff-deployment", deployment=deployment)
    context = {
        "deployment": found,
        "values": values,
        "errors": errors,
        "form_error": " ".join(text for field, text in errors.items() if field not in values),
        "strategies": DeploymentRollout.Strategy.choices,
        "variants": found.base_model.variants.all(),
        "on_sagemaker": found.target.kind == Target.Kind.SAGEMAKER,
        "on_servers": found.target.kind == Target.Kind.OPENAI_HTTP,
    }
    return render(request, "console/deployments/rollout_new.html", context, status=422 if errors else 200)


@require_POST
@staff_page
def act(request: HttpRequest, deployment: str) -> HttpResponse:
    """Pause, resume or abort the running rollout."""
    rollout = deployment_rollout_active(deployment=deployment_get(name=deployment))
    action = _ACTIONS.get(request.POST.get("action", ""))
    try:
        if rollout is None or action is None:
            raise ConflictError(_("no rollout is running"))
        action(rollout=rollout)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    return redirect("console:staff-deployment", deployment=deployment)


def _as_it_is(deployment: Deployment) -> dict[str, str]:
    policy = RolloutPolicy()
    return {
        "strategy": DeploymentRollout.Strategy.ROLLING.value,
        "variant": deployment.variant,
        "image": deployment.image,
        "urls": "\n".join(deployment.urls),
        **{name: json.dumps(getattr(deployment, name)) for name in _JSON},
        **{name: str(getattr(policy, name)) for name in _NUMBERS},
        "alarms": "",
        "shares": "",
    }


def _change(deployment: Deployment, values: dict[str, str]) -> dict[str, Any]:
    change: dict[str, Any] = {"variant": values["variant"], "urls": values["urls"].split()}
    if values["image"]:
        change["image"] = values["image"]
    for name in _JSON:
        try:
            change[name] = strict_json.loads(values[name] or "{}")
        except ValueError:
            raise InvalidInputError(_("give a JSON object, such as {}"), field=name) from None
        if not isinstance(change[name], dict):
            raise InvalidInputError(_("give a JSON object, such as {}"), field=name)
    return {name: value for name, value in change.items() if value != getattr(deployment, name)}


def _policy(values: dict[str, str]) -> dict[str, Any]:
    policy: dict[str, Any] = {"max_error_increase": None}
    for name in _NUMBERS:
        if text := values[name]:
            try:
                policy[name] = float(text) if "." in text else int(text)
            except ValueError:
                raise InvalidInputError(_("give a number"), field=f"policy.{name}") from None
    policy["alarms"] = values["alarms"].split()
    try:
        policy["shares"] = [int(text) for text in values["shares"].replace(",", " ").split()]
    except ValueError:
        raise InvalidInputError(_("give whole numbers, such as 5 25 50"), field="policy.shares") from None
    return policy
