"""URLs of base models, targets, deployments and the fleet."""

from __future__ import annotations

from django.urls import path

from controlplane.console.deployments.views import (
    base_models,
    consolidation,
    deployment_adapters,
    deployment_rollouts,
    deployments,
    fleet,
)

urls = [
    path("staff/base-models/", base_models.index, name="staff-base-models"),
    path("staff/base-models/<str:name>/", base_models.detail, name="staff-base-model"),
    path("staff/base-models/<str:name>/digests", base_models.digests, name="staff-base-digests"),
    path("staff/base-models/<str:name>/variants", base_models.variants, name="staff-base-variants"),
    path("staff/base-models/<str:name>/copies", base_models.copies, name="staff-base-copies"),
    path("staff/deployments/", deployments.index, name="staff-deployments"),
    path("staff/deployments/new", deployments.new, name="staff-deployment-new"),
    path("staff/deployments/<slug:deployment>/", deployments.detail, name="staff-deployment"),
    path("staff/deployments/<slug:deployment>/status", deployments.status, name="staff-deployment-status"),
    path("staff/deployments/<slug:deployment>/change", deployments.change, name="staff-deployment-change"),
    path("staff/deployments/<slug:deployment>/scaling", deployments.scaling, name="staff-deployment-scaling"),
    path("staff/deployments/<slug:deployment>/retry", deployments.retry, name="staff-deployment-retry"),
    path("staff/deployments/<slug:deployment>/remove", deployments.remove, name="staff-deployment-remove"),
    path("staff/fleet/", fleet.index, name="staff-fleet"),
    path("staff/fleet/status", fleet.status, name="staff-fleet-status"),
    path("staff/fleet/copies/<str:copy_id>/", fleet.copy, name="staff-fleet-copy"),
    path("staff/fleet/bases/<str:name>/adapters/", fleet.residency, name="staff-residency"),
    path("staff/fleet/adapters/<str:adapter>/", fleet.adapter, name="staff-fleet-adapter"),
    path(
        "staff/deployments/<slug:deployment>/rollouts",
        deployment_rollouts.start,
        name="staff-deployment-rollouts",
    ),
    path(
        "staff/deployments/<slug:deployment>/rollouts/act",
        deployment_rollouts.act,
        name="staff-deployment-rollout-act",
    ),
    path(
        "staff/deployments/<slug:deployment>/adapters",
        deployment_adapters.index,
        name="staff-deployment-adapters",
    ),
    path(
        "staff/deployments/<slug:deployment>/adapters/act",
        deployment_adapters.act,
        name="staff-deployment-adapter-act",
    ),
    path(
        "staff/deployments/<slug:deployment>/consolidation",
        consolidation.plan,
        name="staff-deployment-consolidation",
    ),
    path(
        "staff/deployments/<slug:deployment>/consolidation/status",
        consolidation.status,
        name="staff-deployment-consolidation-status",
    ),
    path("staff/targets/", deployments.targets, name="staff-targets"),
    path("staff/targets/<slug:target>/remove", deployments.target_delete, name="staff-target-remove"),
]
