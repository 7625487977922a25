"""Models of deployments: targets, desired and observed state, and serving copies."""

from __future__ import annotations

from controlplane.deployments.models.copy import Copy as Copy
from controlplane.deployments.models.copy import RemovedCopy as RemovedCopy
from controlplane.deployments.models.deployment import Deployment as Deployment
from controlplane.deployments.models.deployment import DeploymentStep as DeploymentStep
from controlplane.deployments.models.placement import AdapterRule as AdapterRule
from controlplane.deployments.models.placement import Placement as Placement
from controlplane.deployments.models.rollout import ROLLED as ROLLED
from controlplane.deployments.models.rollout import DeploymentRollout as DeploymentRollout
from controlplane.deployments.models.scale_up import ScaleUp as ScaleUp
from controlplane.deployments.models.scaling import Scaling as Scaling
from controlplane.deployments.models.target import Target as Target
