"""The operator's pages of health and of queued work."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.console.pages import staff_page
from controlplane.console.paging import page_of
from controlplane.metering.replay import dead_usage_replay_ask
from controlplane.metering.selectors import dead_letter_list
from controlplane.operations.health.base import Level
from controlplane.operations.health.parts import health_report
from controlplane.operations.health.queues import work_report
from controlplane.optimization.models import Work
from controlplane.optimization.selectors import comparison_list, job_list

_SHOWN: Final = 20
_WORST_FIRST: Final = (Level.DOWN, Level.WARN, Level.UNKNOWN, Level.OK, Level.UNUSED)


@staff_page("GET")
def index(request: HttpRequest) -> HttpResponse:
    """Show every component, the worst first."""
    return render(request, "staff/health.html", _health())


@staff_page("GET")
def status(request: HttpRequest) -> HttpResponse:
    """Return the components, for polling."""
    return render(request, "staff/health_status.html", _health())


def _health() -> dict[str, Any]:
    report = health_report()
    parts = sorted(report.parts, key=lambda part: _WORST_FIRST.index(part.finding.level))
    return {"report": report, "parts": parts}


@staff_page("GET")
def queues(request: HttpRequest) -> HttpResponse:
    """Show queues, workers, scheduled tasks, open optimization work and dead letters."""
    context = {**_work(), "letters": page_of(request, dead_letter_list())}
    return render(request, "staff/queues.html", context)


@staff_page("GET")
def queues_status(request: HttpRequest) -> HttpResponse:
    """Return the part that changes, for polling."""
    return render(request, "staff/queues_status.html", _work())


@staff_page("POST")
def replay(request: HttpRequest) -> HttpResponse:
    """Queue a task that ingests the dead letters again."""
    count = dead_usage_replay_ask()
    text = ngettext(
        "Replay of %(count)d dead letter queued.", "Replay of %(count)d dead letters queued.", count
    )
    messages.success(request, text % {"count": count})
    return redirect("console:staff-queues")


def _work() -> dict[str, Any]:
    jobs = [
        _open(job, "console:staff-optimization", job.variant_name)
        for job in job_list(unfinished=True)[:_SHOWN]
    ]
    comparisons = [
        _open(run, "console:staff-comparison", run.name or _("Comparison %(number)d") % {"number": run.pk})
        for run in comparison_list(unfinished=True)[:_SHOWN]
    ]
    return {"work": work_report(), "jobs": [*jobs, *comparisons]}


def _open(work: Work, page: str, title: str) -> dict[str, Any]:
    return {
        "url": reverse(page, args=(work.pk,)),
        "title": title,
        "status": work.get_status_display(),
        "percent": work.percent,
        "host": work.host,
        "created_at": work.created_at,
    }
