"""Contract of provisioners: observe a target, create what is missing, remove what is not wanted.

A provisioner keeps no state between calls. It reads everything from its target, by names that derive from the
deployment's name. After a crash between any two calls the next process continues where the last one stopped,
and creates nothing twice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import SageMakerTarget
from contracts.server_credentials import ServerCredentials
from controlplane.deployments.capabilities import RunningEngine
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.errors import ControlPlaneError


class State(StrEnum):
    """State of a resource, in terms that all targets share."""

    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    CHANGING = "changing"
    FAILED = "failed"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Share:
    """An exact share of a base model's callers; see `CanaryRoute`."""

    name: str
    percent: int


@dataclass(frozen=True, slots=True)
class RolloutStage:
    """Stage of a rollout between two states of the copies; the desired state is the one that it moves to.

    Attributes:
        before: the other state: the previous one or, while rolling back, the abandoned one.
        target_copies: number of copies of the desired state now.
        routed_copies: maximum number of those that routes may lead to; lower while a complete new set starts.
        keep_old: keep the other copies running without routes, for a rollback.
        share: share of callers for the routed new copies, while all others keep their routes and get the
            rest. None: each routed new copy replaces an old one in the routes, and requests follow load.
        rolling_back: the rollout is rolling back: no route leads to the others once a desired copy serves.
        paused: the rollout is paused: a target that performs all of it by itself is not called yet.
        started_at: start of the rollout or rollback in Unix seconds; earlier exits of copies are ignored.
        config: `DeploymentConfig` of SageMaker's update, without our own alarms.
        thresholds: thresholds of our own alarms, by metric; see `provisioners.sagemaker.alarms`.
    """

    before: Desired
    target_copies: int = 0
    routed_copies: int = 0
    keep_old: bool = False
    share: Share | None = None
    rolling_back: bool = False
    paused: bool = False
    started_at: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the copies towards the desired state.

    Attributes:
        ready_copies: responsive copies of the desired state, up to the target number.
        routed_urls: URLs of those that routes lead to.
        failed: why a copy of the desired state failed; "" without a failure.
        rolled_back: why the target itself rolled back; "" if it did not.
    """

    ready_copies: int = 0
    routed_urls: frozenset[str] = frozenset()
    failed: str = ""
    rolled_back: str = ""


@dataclass(frozen=True, slots=True)
class Desired:
    """Complete desired state of a deployment at one moment.

    Attributes:
        checkpoint: location of the base model: a folder, `s3://...` or `hf://...`.
        checkpoint_digest: digest of its content; "" while unknown.
        checkpoint_needs_token: containers cannot download it: only the control plane has its hub's token.
        adapters: adapters to place.
        keep: engine names without a route whose last requests may still run.
        drained: URL of each endpoint that left the routes so long ago that no new request arrives -> seconds
            since then.
        fallback_instance_types: further types, in the order in which they are tried.
        routed: URLs of copies that routes lead to, or led to in the last two hours.
        retry: failed resources may be deleted and recreated.
        tried: causes of updates since an operator's last step. If such a cause persists, the target rolled
            the update back, and it is not repeated at once.
        endpoint_is_shared: another deployment uses the same endpoint.
        min_copies, max_copies: bounds in force at this moment.
        scaling: policy for the target's own autoscaler; `scaled`: a policy may have been registered there.
        endpoint_scaling: policy for the endpoint's routing and release of instances: `scaling`, or that of
            another deployment on it.
        urls: openai_http: servers that replace the target's.
        stage: active rollout towards this state; None without one.
        had_rollouts: a rollout has existed, so its alarms may exist.
    """

    deployment: str
    base_model: str
    served_name: str
    checkpoint: str
    checkpoint_digest: str
    hosting: str
    min_copies: int
    max_copies: int
    adapters: tuple[AdapterRef, ...] = ()
    keep: frozenset[str] = frozenset()
    drained: Mapping[str, float] = field(default_factory=dict)
    routed: frozenset[str] = frozenset()
    endpoint: str = ""
    instance_type: str = ""
    fallback_instance_types: tuple[str, ...] = ()
    min_instances: int = 1
    max_instances: int = 1
    image: str = ""
    image_family: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    compute: Mapping[str, Any] = field(default_factory=dict)
    endpoint_is_shared: bool = False
    retry: bool = False
    tried: frozenset[str] = frozenset()
    scaling: ScalingPolicy | None = None
    scaled: bool = False
    endpoint_scaling: ScalingPolicy | None = None
    urls: tuple[str, ...] = ()
    checkpoint_needs_token: bool = False
    stage: RolloutStage | None = None
    had_rollouts: bool = False


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource in the target that belongs to this deployment.

    Attributes:
        has: observed properties, named as in the desired state: copies, base (checkpoint or served name),
            image, instance_type.
        stale: its state is not the desired one.
    """

    kind: str
    name: str
    state: State
    reason: str = ""
    has: Mapping[str, str] = field(default_factory=dict)
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint that gateways may send requests to.

    Attributes:
        silent: it exists but did not answer in time. It stays in the routes for a while, but is not added to
            them (`copies.endpoints`).
        share: share of callers for all endpoints with this share together; None for the other endpoints.
        engine: the engine as the server tells it; None for the deployment's (`RunningEngine.of_deployment`).
        credentials: what an `openai_http` server wants with each request; None if that cannot be read, and
            then a routed copy keeps what gateways know.
    """

    kind: str
    url: str
    loads_adapters: bool = False
    sagemaker: SageMakerTarget | None = None
    silent: bool = False
    share: Share | None = None
    engine: RunningEngine | None = None
    credentials: ServerCredentials | None = field(default_factory=ServerCredentials)


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """An adapter as observed in the target."""

    resource: str
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScalingActivity:
    """A scale-up that the target's own autoscaler started.

    Attributes:
        event: its id there.
        detect: seconds that the autoscaler's alarm needs to detect the demand.
        ended: when the copies ran; None while in progress.
    """

    event: str
    before: int
    after: int
    cause: str
    detect: float
    decided: dt.datetime
    ended: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Observed state of a deployment.

    Attributes:
        endpoints: endpoints where the base answers now; a target with its own routing has one for all copies.
        adapters: by engine name; empty where requests load adapters on demand.
        waiting: what must happen before more can be done; "" for nothing.
        complete: the observed state equals the desired one, with nothing left over.
        copies_complete: the same without adapters, which may be loading or leaving. If adapters are part of
            the copies (preloaded), it stays true during an update as long as no copy is missing.
        empty: no resource of the deployment is left.
        failed: an essential resource failed; says what to do.
        drift: external changes, as sentences.
        unscaled: why the target's autoscaler does not follow the policy, although copies serve.
        scaling_activities: the autoscaler's latest scale-ups, oldest first.
        running, instances: running copies and their machines, if the target counts them itself.
        progress: progress of an active rollout.
        detail: the provisioner's own data, for its `apply` and `remove`.
    """

    resources: tuple[Resource, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    adapters: Mapping[str, PlacedAdapter] = field(default_factory=dict)
    waiting: str = ""
    complete: bool = False
    copies_complete: bool = False
    empty: bool = False
    failed: str = ""
    drift: tuple[str, ...] = ()
    unscaled: str = ""
    scaling_activities: tuple[ScalingActivity, ...] = ()
    running: int | None = None
    instances: int | None = None
    progress: Progress = field(default_factory=Progress)
    detail: Any = None


@dataclass(frozen=True, slots=True)
class Step:
    """One change, made by one call.

    Attributes:
        action: the call's name, such as `create_endpoint`.
        cause: why it was made.
        failed: what to do, if the call was refused and other steps can go on.
    """

    action: str
    resource: str
    cause: str
    failed: str = ""


class Provisioner(Protocol):
    """Manages one deployment in one target. Every method raises ProvisioningError."""

    def observe(self) -> Observation:
        """Return the observed state. Reads only."""

    def apply(self, seen: Observation) -> Iterator[Step]:
        """Create missing resources and change differing ones; each step's call precedes its yield.

        The iterator ends when nothing more can be done based on `seen`. The next `observe` shows whether all
        is complete or something must be waited for.
        """

    def remove(self, seen: Observation) -> Iterator[Step]:
        """Delete all resources, dependents first, one call per step; ends as `apply` does."""

    def close(self) -> None:
        """Close connections."""


class ProvisioningError(ControlPlaneError):
    """The target refused or did not answer; the message says what to do.

    Attributes:
        transient: the same call may succeed later without a change.
        wait: seconds until then, if the target reports them.
        code: the target's error code.
    """

    def __init__(self, message: str, *, transient: bool = False, wait: float = 0.0, code: str = "") -> None:
        super().__init__(message)
        self.transient, self.wait, self.code = transient, wait, code


class ThrottledError(ProvisioningError):
    """The target asks for fewer calls."""

    def __init__(self, message: str, *, wait: float = 0.0, code: str = "") -> None:
        super().__init__(message, transient=True, wait=wait, code=code)
