"""URLs of base models, targets, deployments and the fleet."""

from __future__ import annotations

from typing import Final

from django.urls import path

from controlplane.console.deployments.views import (
    base_models,
    consolidation,
    deployment_adapters,
    deployment_rollouts,
    deployments,
    fleet,
    targets,
)

_BASE: Final = "staff/base-models/<str:name>/"
_ONE: Final = "staff/deployments/<slug:deployment>/"
_FLEET: Final = "staff/fleet/"

urls = [
    path("staff/base-models/", base_models.index, name="staff-base-models"),
    path(_BASE, base_models.detail, name="staff-base-model"),
    path(f"{_BASE}digests", base_models.digests, name="staff-base-digests"),
    path(f"{_BASE}refresh", base_models.refresh, name="staff-base-refresh"),
    path(f"{_BASE}variants", base_models.variants, name="staff-base-variants"),
    path(f"{_BASE}copies", base_models.copies, name="staff-base-copies"),
    path("staff/deployments/", deployments.index, name="staff-deployments"),
    path("staff/deployments/new", deployments.new, name="staff-deployment-new"),
    path(_ONE, deployments.detail, name="staff-deployment"),
    path(f"{_ONE}status", deployments.status, name="staff-deployment-status"),
    path(f"{_ONE}change", deployments.change, name="staff-deployment-change"),
    path(f"{_ONE}scaling", deployments.scaling, name="staff-deployment-scaling"),
    path(f"{_ONE}retry", deployments.retry, name="staff-deployment-retry"),
    path(f"{_ONE}remove", deployments.remove, name="staff-deployment-remove"),
    path(_FLEET, fleet.index, name="staff-fleet"),
    path(f"{_FLEET}status", fleet.status, name="staff-fleet-status"),
    path(f"{_FLEET}copies/<str:copy_id>/", fleet.copy, name="staff-fleet-copy"),
    path(f"{_FLEET}bases/<str:name>/adapters/", fleet.residency, name="staff-residency"),
    path(f"{_FLEET}adapters/<str:adapter>/", fleet.adapter, name="staff-fleet-adapter"),
    path(f"{_ONE}rollouts", deployment_rollouts.start, name="staff-deployment-rollouts"),
    path(f"{_ONE}rollouts/act", deployment_rollouts.act, name="staff-deployment-rollout-act"),
    path(f"{_ONE}adapters", deployment_adapters.index, name="staff-deployment-adapters"),
    path(f"{_ONE}adapters/act", deployment_adapters.act, name="staff-deployment-adapter-act"),
    path(f"{_ONE}consolidation", consolidation.plan, name="staff-deployment-consolidation"),
    path(f"{_ONE}consolidation/status", consolidation.status, name="staff-deployment-consolidation-status"),
    path("staff/targets/", targets.targets, name="staff-targets"),
    path("staff/targets/<slug:target>/remove", targets.target_delete, name="staff-target-remove"),
]
