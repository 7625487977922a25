"""The operator's pages of optimization jobs: recipes, running jobs, and the rollout of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_get, base_model_list
from controlplane.console.form_errors import FormErrors, RefusalMessage
from controlplane.console.optimization.optimization_form import (
    adapter_asked,
    choices,
    form_values,
    preset_runs,
    recipe_asked,
    sagemaker_asked,
)
from controlplane.console.pages import staff_page
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.rollouts.selectors import deployment_rollout_list
from controlplane.deployments.selectors import deployment_get, deployment_list_on
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.optimization.deploying import job_deploy, job_take_back
from controlplane.optimization.models import OptimizationJob, Status, Work
from controlplane.optimization.prompt_sets import prompts_create
from controlplane.optimization.queueing import queue_of, waits_for_worker
from controlplane.optimization.recipes import recipe_refusals
from controlplane.optimization.selectors import (
    assessment_list,
    comparison_list,
    event_list,
    job_get,
    job_list,
    prompts_get,
    prompts_list,
)
from controlplane.optimization.services import job_create, job_remove, work_cancel

_SHOWN: Final = 50
TONES: Final = {
    Status.DONE: "ok",
    Status.FAILED: "danger",
    Status.CANCELLED: "neutral",
    Status.WAITING: "warn",
    Status.CANCELLING: "warn",
}


@staff_page("GET")
def index(request: HttpRequest) -> HttpResponse:
    """List jobs, comparisons and SageMaker assessments, newest first."""
    context = {
        "jobs": [_row(job) for job in job_list()[:_SHOWN]],
        "comparisons": [_row(comparison) for comparison in comparison_list()[:_SHOWN]],
        "assessments": [_row(assessment) for assessment in assessment_list()[:_SHOWN]],
    }
    return render(request, "staff/optimizations.html", context)


@staff_page("GET", "POST")
def new(request: HttpRequest) -> HttpResponse:
    """Show and handle the form of recipes."""
    values, errors = form_values(request.POST), FormErrors(request)
    if request.method == "POST":
        with errors:
            base_model = base_model_get(name=values["base_model"])
            job, made = job_create(
                base_model=base_model,
                recipe=recipe_asked(values),
                adapter=adapter_asked(values, base_model),
                prompts=prompts_get(sha256=values["prompts"]) if values["prompts"] else None,
                variant=values["variant"],
                sagemaker=sagemaker_asked(values),
            )
            if not made:
                messages.info(request, _("A job with this recipe and checkpoint already exists."))
            return redirect("console:staff-optimization", optimization=job.pk)
    context = {
        "values": values,
        "bases": base_model_list(),
        "prompt_sets": prompts_list()[:100],
        "check": _check(values) if values["base_model"] else None,
        "preset_runs": preset_runs(values),
        **choices(),
    }
    return errors.render("staff/optimization_new.html", context)


@staff_page("GET")
def check(request: HttpRequest) -> HttpResponse:
    """Show conflicts of the form's choices, and the presets' measured gains; called at each change."""
    values = form_values(request.GET)
    context = {"check": _check(values), "preset_runs": preset_runs(values), "swapped": True}
    return render(request, "staff/optimization_check.html", context)


@staff_page("GET")
def detail(request: HttpRequest, optimization: int) -> HttpResponse:
    """Show one job."""
    return render(request, "staff/optimization.html", _context(job_get(pk=optimization)))


@staff_page("GET")
def status(request: HttpRequest, optimization: int) -> HttpResponse:
    """Show the changing part, polled while the job runs; then redirect to its page."""
    job = job_get(pk=optimization)
    return work_status(request, job, _context(job))


@staff_page("POST")
def act(request: HttpRequest, optimization: int) -> HttpResponse:
    """Cancel or delete the job, roll its variant out, or roll a deployment back from it."""
    job = job_get(pk=optimization)
    name = request.POST.get("deployment", "")
    with RefusalMessage(request):
        match request.POST.get("action", ""):
            case "cancel":
                work_cancel(work=job)
            case "remove":
                job_remove(job=job)
                return redirect("console:staff-optimizations")
            case "deploy":
                job_deploy(job=job, deployment=deployment_get(name=name))
                messages.success(request, _("Rollout started. It rolls back automatically on errors."))
                return redirect("console:staff-deployment", deployment=name)
            case "take_back":
                job_take_back(job=job, deployment=deployment_get(name=name))
                messages.success(request, _("Rollback started."))
                return redirect("console:staff-deployment", deployment=name)
            case _:
                messages.error(request, _("choose an action"))
    return redirect("console:staff-optimization", optimization=optimization)


@staff_page("GET", "POST")
def prompt_sets(request: HttpRequest) -> HttpResponse:
    """List the prompt sets, with the form that adds one."""
    errors = FormErrors(request, conflict_field="file")
    if request.method == "POST":
        with errors:
            if (file := request.FILES.get("file")) is None:
                raise InvalidInputError(_("choose a JSONL file"), field="file")
            name = request.POST.get("name", "").strip() or (file.name or "")
            prompts_create(stream=file, name=name)
            return redirect("console:staff-prompt-sets")
    return errors.render("staff/prompt_sets.html", {"prompt_sets": prompts_list()[:_SHOWN]})


def deployments_for(base_model: BaseModel) -> list[Deployment]:
    """Return the deployments to which a variant of the base model can be rolled out."""
    rows = deployment_list_on(base_model=base_model)
    return [row for row in rows if row.target.kind != Target.Kind.OPENAI_HTTP]


def work_status(request: HttpRequest, work: Work, context: dict[str, Any]) -> HttpResponse:
    """Show the changing part of an open work; one that has ended redirects to its page."""
    if not work.is_open:
        return HttpResponse(status=204, headers={"HX-Redirect": context["poll"].removesuffix("status")})
    return render(request, "staff/work_status.html", context)


def work_act(request: HttpRequest, work: Work, remove: Callable[[], None], page: str) -> HttpResponse:
    """Cancel the work or, as the form says, remove it."""
    with RefusalMessage(request):
        if request.POST.get("action") == "remove":
            remove()
            return redirect("console:staff-optimizations")
        work_cancel(work=work)
    return redirect(page, work.pk)


def work_context(work: Work, kind: str) -> dict[str, Any]:
    """Return the context of the polled part."""
    return {
        "work": work,
        "poll": f"/staff/{kind}/{work.pk}/status",
        "tone": TONES.get(Status(work.status), "info"),
        "unattended": waits_for_worker(work),
        "events": event_list(work=work)[:_SHOWN],
        "queue": queue_of(work),
    }


def _context(job: OptimizationJob) -> dict[str, Any]:
    merged = job.variant.merged_adapter if job.variant else ""
    rows = deployments_for(job.base_model) if job.variant else []
    deployments = [row for row in rows if row.merged_adapter == merged]
    serving = [item for item in deployments if job.variant and item.variant == job.variant.name]
    return {
        **work_context(job, "optimizations"),
        "job": job,
        "merged": merged,
        "deployments": [item for item in deployments if item not in serving],
        "serving": [(item, deployment_rollout_list(deployment=item).first()) for item in serving],
    }


def _row(work: Work) -> dict[str, Any]:
    return {"work": work, "tone": TONES.get(Status(work.status), "info")}


def _check(values: dict[str, str]) -> dict[str, Any]:
    try:
        recipe = recipe_asked(values)
        base_model = base_model_get(name=values["base_model"])
        adapter = adapter_asked(values, base_model)
        refusals = recipe_refusals(recipe, base_model, merges=adapter is not None)
    except ControlPlaneError as error:
        return {"problem": str(error)}
    waits = base_model.digest_status != BaseModel.Digest.DONE
    return {"recipe": recipe.to_dict(), "refusals": refusals, "waits": waits}
