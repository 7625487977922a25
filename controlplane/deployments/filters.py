"""Query filters for the lists of copies, targets and deployments."""

from __future__ import annotations

import django_filters as filters

from controlplane.deployments.models import Deployment, DeploymentStep, Placement


class DeploymentFilter(filters.FilterSet):  # type: ignore[misc]
    base_model = filters.CharFilter("base_model__name")
    target = filters.CharFilter("target__name")
    status = filters.ChoiceFilter(choices=Deployment.Status.choices)


class PlacementFilter(filters.FilterSet):  # type: ignore[misc]
    status = filters.ChoiceFilter(choices=Placement.Status.choices)


class StepFilter(filters.FilterSet):  # type: ignore[misc]
    outcome = filters.ChoiceFilter(choices=DeploymentStep.Outcome.choices)
