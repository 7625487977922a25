"""REST routes of copies, targets and deployments, included by `controlplane.api_urls`."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern, path

from controlplane.canaries import sides_api as sides
from controlplane.deployments import api as deployments
from controlplane.deployments import scaling_api as scaling
from controlplane.deployments.copies import api as copies
from controlplane.deployments.phases import api as phases
from controlplane.deployments.placement import api as placing
from controlplane.deployments.rollouts import api as rollouts
from controlplane.deployments.targets import api as targets
from controlplane.fleet import adapters_seen_api as adapters_seen
from controlplane.fleet import consolidation_api as consolidation

DEPLOYMENT_ROUTES: Final[list[URLPattern]] = [
    path("copies", copies.CopiesApi.as_view(), name="copies"),
    path("copies/<str:copy_id>", copies.CopyApi.as_view(), name="copy"),
    path("targets", targets.TargetsApi.as_view(), name="targets"),
    path("targets/<str:target>", targets.TargetApi.as_view(), name="target"),
    path("deployments", deployments.DeploymentsApi.as_view(), name="deployments"),
    path("deployments/<str:deployment>", deployments.DeploymentApi.as_view(), name="deployment"),
    path(
        "deployments/<str:deployment>/retry",
        deployments.DeploymentRetryApi.as_view(),
        name="deployment-retry",
    ),
    path(
        "deployments/<str:deployment>/state",
        deployments.DeploymentStateApi.as_view(),
        name="deployment-state",
    ),
    path("deployments/<str:deployment>/scaling", scaling.ScalingApi.as_view(), name="deployment-scaling"),
    path("deployments/<str:deployment>/scale-ups", phases.ScaleUpsApi.as_view(), name="deployment-scale-ups"),
    path(
        "deployments/<str:deployment>/prediction",
        phases.PredictionApi.as_view(),
        name="deployment-prediction",
    ),
    path(
        "deployments/<str:deployment>/consolidation",
        consolidation.ConsolidationApi.as_view(),
        name="deployment-consolidation",
    ),
    path(
        "deployments/<str:deployment>/rollouts",
        rollouts.DeploymentRolloutsApi.as_view(),
        name="deployment-rollouts",
    ),
    path(
        "deployments/<str:deployment>/rollouts/<int:deployment_rollout>",
        rollouts.DeploymentRolloutApi.as_view(),
        name="deployment-rollout",
    ),
    path(
        "deployments/<str:deployment>/rollouts/<int:deployment_rollout>/usage",
        sides.DeploymentRolloutUsageApi.as_view(),
        name="deployment-rollout-usage",
    ),
    path(
        "deployments/<str:deployment>/rollouts/<int:deployment_rollout>/pause",
        rollouts.DeploymentRolloutPauseApi.as_view(),
        name="deployment-rollout-pause",
    ),
    path(
        "deployments/<str:deployment>/rollouts/<int:deployment_rollout>/resume",
        rollouts.DeploymentRolloutResumeApi.as_view(),
        name="deployment-rollout-resume",
    ),
    path(
        "deployments/<str:deployment>/rollouts/<int:deployment_rollout>/abort",
        rollouts.DeploymentRolloutAbortApi.as_view(),
        name="deployment-rollout-abort",
    ),
    path(
        "deployments/<str:deployment>/adapters",
        adapters_seen.AdaptersSeenApi.as_view(),
        name="deployment-adapters",
    ),
    path(
        "deployments/<str:deployment>/adapter-rules", placing.AdapterRulesApi.as_view(), name="adapter-rules"
    ),
    path(
        "deployments/<str:deployment>/adapter-rules/<str:engine_name>",
        placing.AdapterRuleApi.as_view(),
        name="adapter-rule",
    ),
    path(
        "deployments/<str:deployment>/adapter-rules/<str:engine_name>/evict",
        placing.AdapterEvictApi.as_view(),
        name="adapter-rule-evict",
    ),
    path(
        "deployments/<str:deployment>/adapter-rules/<str:engine_name>/move",
        placing.AdapterMoveApi.as_view(),
        name="adapter-rule-move",
    ),
    path("deployments/<str:deployment>/placements", deployments.PlacementsApi.as_view(), name="placements"),
    path("deployments/<str:deployment>/steps", deployments.StepsApi.as_view(), name="deployment-steps"),
]
