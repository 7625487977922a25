"""The operator's home page: health, what needs attention, usage and spend, deployments."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.billing.price_list import PriceList
from controlplane.console.bars import HEIGHT, WIDTH
from controlplane.console.day_range import THIS_MONTH, UP_TO_A_MONTH, preset_asked, presets_shown
from controlplane.console.pages import staff_page
from controlplane.console.staff.attention import attention
from controlplane.console.staff.overview_figures import overview_figures
from controlplane.console.staff.set_up import set_up_steps
from controlplane.deployments.comparison import observed_copies
from controlplane.deployments.selectors import deployment_list, deployment_status_counts
from controlplane.operations.health.base import Level
from controlplane.operations.health.parts import health_report

DEPLOYMENTS: Final = 8
"""Deployments that the page lists, by name."""


@staff_page("GET")
def index(request: HttpRequest) -> HttpResponse:
    """Show the overview of a range, by default this month."""
    start, end = preset_asked(request, default=THIS_MONTH, choices=UP_TO_A_MONTH).dates
    currency = PriceList.load().currency()
    counts, steps = deployment_status_counts(), set_up_steps()
    context = {
        "presets": presets_shown(request, default=THIS_MONTH, choices=UP_TO_A_MONTH),
        "start": start,
        "end": end,
        "currency": currency,
        "figures": overview_figures(start=start, end=end, currency=currency),
        "width": WIDTH,
        "height": HEIGHT,
        "to_do": attention(currency=currency),
        "steps": () if all(step.done for step in steps) else steps,
        "deployments": [(row, observed_copies(row)) for row in deployment_list()[:DEPLOYMENTS]],
        "deployment_count": sum(counts.values()),
    }
    return render(request, "staff/overview.html", context)


@staff_page("GET")
def health(request: HttpRequest) -> HttpResponse:
    """Return the state of the components, which the page loads itself: checks may take seconds."""
    report = health_report()
    bad = [part for part in report.parts if part.finding.level in (Level.WARN, Level.DOWN)]
    used = [part for part in report.parts if part.finding.level is not Level.UNUSED]
    return render(request, "staff/overview_health.html", {"report": report, "bad": bad, "used": len(used)})
