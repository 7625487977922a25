"""REST routes of copies, targets and deployments, included by `controlplane.api_urls`."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern

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
from controlplane.platform.http.routes import route

_ROLLOUT: Final = "deployments/<str:deployment>/rollouts/<int:deployment_rollout>"
_RULES: Final = "deployments/<str:deployment>/adapter-rules"
_DEPLOYMENT: Final = "deployments/<str:deployment>"

DEPLOYMENT_ROUTES: Final[list[URLPattern]] = [
    route("copies", copies.CopiesApi, "copies"),
    route("copies/<str:copy_id>", copies.CopyApi, "copy"),
    route("targets", targets.TargetsApi, "targets"),
    route("targets/<str:target>", targets.TargetApi, "target"),
    route("deployments", deployments.DeploymentsApi, "deployments"),
    route(_DEPLOYMENT, deployments.DeploymentApi, "deployment"),
    route(f"{_DEPLOYMENT}/retry", deployments.DeploymentRetryApi, "deployment-retry"),
    route(f"{_DEPLOYMENT}/state", deployments.DeploymentStateApi, "deployment-state"),
    route(f"{_DEPLOYMENT}/scaling", scaling.ScalingApi, "deployment-scaling"),
    route(f"{_DEPLOYMENT}/scale-ups", phases.ScaleUpsApi, "deployment-scale-ups"),
    route(f"{_DEPLOYMENT}/prediction", phases.PredictionApi, "deployment-prediction"),
    route(f"{_DEPLOYMENT}/consolidation", consolidation.ConsolidationApi, "deployment-consolidation"),
    route(f"{_DEPLOYMENT}/rollouts", rollouts.DeploymentRolloutsApi, "deployment-rollouts"),
    route(_ROLLOUT, rollouts.DeploymentRolloutApi, "deployment-rollout"),
    route(f"{_ROLLOUT}/usage", sides.DeploymentRolloutUsageApi, "deployment-rollout-usage"),
    route(f"{_ROLLOUT}/pause", rollouts.DeploymentRolloutPauseApi, "deployment-rollout-pause"),
    route(f"{_ROLLOUT}/resume", rollouts.DeploymentRolloutResumeApi, "deployment-rollout-resume"),
    route(f"{_ROLLOUT}/abort", rollouts.DeploymentRolloutAbortApi, "deployment-rollout-abort"),
    route(f"{_DEPLOYMENT}/adapters", adapters_seen.AdaptersSeenApi, "deployment-adapters"),
    route(_RULES, placing.AdapterRulesApi, "adapter-rules"),
    route(f"{_RULES}/<str:engine_name>", placing.AdapterRuleApi, "adapter-rule"),
    route(f"{_RULES}/<str:engine_name>/evict", placing.AdapterEvictApi, "adapter-rule-evict"),
    route(f"{_RULES}/<str:engine_name>/move", placing.AdapterMoveApi, "adapter-rule-move"),
    route(f"{_DEPLOYMENT}/placements", deployments.PlacementsApi, "placements"),
    route(f"{_DEPLOYMENT}/steps", deployments.StepsApi, "deployment-steps"),
]
