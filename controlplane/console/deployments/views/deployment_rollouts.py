"""The operator's pages of deployment rollouts: the form that starts one, and its controls."""

from __future__ import annotations

import json
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from contracts import strict_json
from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed
from controlplane.console.pages import staff_page
from controlplane.deployments.models import Deployment, DeploymentRollout, Target
from controlplane.deployments.rollouts.policy import RolloutPolicy
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.serializers import RolloutPolicySerializer
from controlplane.deployments.rollouts.services import (
    deployment_rollout_abort,
    deployment_rollout_pause,
    deployment_rollout_resume,
    deployment_rollout_start,
)
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import ConflictError, InvalidInputError

_ACTIONS: Final = {
    "pause": deployment_rollout_pause,
    "resume": deployment_rollout_resume,
    "abort": deployment_rollout_abort,
}
_JSON: Final = ("options", "environment")
_NUMBERS: Final = ("batch_copies", "wait_seconds", "max_error_increase")


@staff_page("GET", "POST")
def start(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show and handle the form that starts a rollout: the copies' new settings, and the strategy."""
    found = deployment_get(name=deployment)
    values, errors = _as_it_is(found), FormErrors(request)
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in values}
        with errors:
            deployment_rollout_start(
                deployment=found,
                strategy=values["strategy"],
                change=_change(found, values),
                policy=_policy(values),
            )
            return redirect("console:staff-deployment", deployment=deployment)
    placed = {field.removeprefix("policy."): text for field, text in errors.items()}
    context = {
        "deployment": found,
        "values": values,
        "errors": placed,
        "form_error": " ".join(text for field, text in placed.items() if field not in values),
        "strategies": DeploymentRollout.Strategy.choices,
        "variants": found.base_model.variants.all(),
        "on_sagemaker": found.target.kind == Target.Kind.SAGEMAKER,
        "on_servers": found.target.kind == Target.Kind.OPENAI_HTTP,
    }
    return errors.render("console/deployments/rollout_new.html", context)


@staff_page("POST")
def act(request: HttpRequest, deployment: str) -> HttpResponse:
    """Pause, resume or abort the running rollout."""
    rollout = deployment_rollout_active(deployment=deployment_get(name=deployment))
    action = _ACTIONS.get(request.POST.get("action", ""))
    with RefusalMessage(request):
        if rollout is None or action is None:
            raise ConflictError(_("no rollout is running"))
        action(rollout=rollout)
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
    lists = {"alarms": values["alarms"].split(), "shares": values["shares"].replace(",", " ").split()}
    numbers = {name: values[name] for name in _NUMBERS}
    unlimited = {} if numbers["max_error_increase"] else {"max_error_increase": None}
    return parsed(RolloutPolicySerializer, {**numbers, **lists, **unlimited})
