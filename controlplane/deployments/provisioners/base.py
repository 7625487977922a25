"""What a provisioner does: sees what there is, makes what is wanted, takes away what is not.

A provisioner keeps nothing between two calls. All that it knows it reads from its target, by names that
follow from the deployment's: whoever comes after one that died, between whichever two calls, goes on where
that one stood, and makes nothing twice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import SageMakerTarget
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.errors import ControlPlaneError


class State(StrEnum):
    """Of a resource, in words that all targets share."""

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
class Turn:
    """Where a rollout stands between two states of the copies; the desired state is the one it goes to.

    Attributes:
        before: the other state: what the copies were, or, of one that is taken back, were to become.
        fresh: how many copies of the desired state are to be there now.
        led: to how many of those routes may lead; fewer while a whole new set is waited for.
        spare: the others are kept running when no route leads to them any more, for the way back.
        share: what those get that routes lead to, while all of the others keep their routes and get the rest;
            None: routes lead to as many fewer of the others, and requests go by load.
        back: it is taken back: no route leads to the others once one of the desired state serves.
        hold: it is paused: a target that would carry out all of it by itself is not asked yet.
        began: Unix seconds at which it began, or was taken back: what ended before says nothing about it.
        config: of SageMaker's update, its `DeploymentConfig` but for our own alarms.
        thresholds: of our own alarms, by what they watch; see `provisioners.sagemaker.alarms`.
    """

    before: Desired
    fresh: int = 0
    led: int = 0
    spare: bool = False
    share: Share | None = None
    back: bool = False
    hold: bool = False
    began: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the copies have come to the desired state.

    Attributes:
        fresh: copies of it that answer, of those that are to be there.
        places: URLs of those that routes lead to.
        failed: why a copy of it does not come to answer; "" while it may.
        taken_back: why the target itself has gone back to the state before; "" while it has not.
    """

    fresh: int = 0
    places: frozenset[str] = frozenset()
    failed: str = ""
    taken_back: str = ""


@dataclass(frozen=True, slots=True)
class Desired:
    """A deployment's desired state, whole, as of one moment.

    Attributes:
        checkpoint: the base model's source: a folder, `s3://...` or `hf://...`.
        checkpoint_digest: of its content; "" while it is not known.
        adapters: those that are to be there.
        keep: engine names that nothing leads to any more, but whose last requests may still run.
        drained: URLs of places that left the routes so long ago that no new request comes, and the seconds
            since.
        routed: URLs of copies that routes lead to, or led to in the last two hours.
        retry: what failed may be taken away and made anew.
        tried: causes of updates that were made since a person last asked for something: one whose cause is
            still there was taken back by the target, and is not repeated at once.
        endpoint_is_shared: another deployment wants the same endpoint.
        min_copies, max_copies: those that are in force at this moment.
        scaling: what an autoscaler of the target's is to follow; `scaled`: one may have been told to.
        endpoint_scaling: whose routing and release of instances the endpoint follows: `scaling`, or that of
            another deployment on it.
        urls: openai_http: the servers, instead of the target's.
        turn: the rollout that is under way to this state; None without one.
        had_turns: there has been a rollout, so there may be alarms of its.
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
    turn: Turn | None = None
    had_turns: bool = False


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing in the target that is this deployment's.

    Attributes:
        has: what was found in it, in the desired state's words: copies, base (checkpoint, or the name that it
            serves under), image, instance_type.
        stale: it is of another state than the desired one.
    """

    kind: str
    name: str
    state: State
    reason: str = ""
    has: Mapping[str, str] = field(default_factory=dict)
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What gateways may be sent to.

    Attributes:
        silent: it is there, but did not answer in time: it stays in the routes for a while (`served`), and
            comes into none.
        share: of callers, which all places of this share get together; None: it is one of the others.
    """

    kind: str
    url: str
    loads_adapters: bool = False
    sagemaker: SageMakerTarget | None = None
    silent: bool = False
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """An adapter as it was found in the target."""

    resource: str
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Scaled:
    """More copies, as the target's own autoscaler asked for them.

    Attributes:
        event: its name there.
        detect: seconds that its alarm takes to see the need.
        ended: when they ran; None while they are on their way.
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
    """What there is.

    Attributes:
        places: where the base answers now; of a target that routes by itself, one for all copies.
        adapters: by engine name; empty where adapters come with requests.
        waiting: what has to happen before more can be done; "" for nothing.
        complete: all is there as wanted, and nothing besides.
        copies_complete: the same but for adapters, which may be on their way or leaving; where those come
            inside of copies (preloaded), also while copies are updated, as long as none is missing.
        empty: nothing of the deployment is left.
        failed: a resource without which nothing serves has failed; says what to do.
        drift: what somebody else changed since, in sentences.
        unscaled: why the target's autoscaler does not follow the policy, while what serves goes on.
        scaled: the latest growths that were the autoscaler's doing, oldest first.
        running, instances: copies that run, and machines under them, of a target that counts them itself.
        progress: while a rollout is under way, how far it is.
        detail: the provisioner's own, for its `apply` and `remove`.
    """

    resources: tuple[Resource, ...] = ()
    places: tuple[Place, ...] = ()
    adapters: Mapping[str, PlacedAdapter] = field(default_factory=dict)
    waiting: str = ""
    complete: bool = False
    copies_complete: bool = False
    empty: bool = False
    failed: str = ""
    drift: tuple[str, ...] = ()
    unscaled: str = ""
    scaled: tuple[Scaled, ...] = ()
    running: int | None = None
    instances: int | None = None
    progress: Progress = field(default_factory=Progress)
    detail: Any = None


@dataclass(frozen=True, slots=True)
class Step:
    """One change that was made by one call.

    Attributes:
        action: the call's name, such as `create_endpoint`.
        cause: why.
        failed: what to do, where the call was refused and the others can go on.
    """

    action: str
    resource: str
    cause: str
    failed: str = ""


class Provisioner(Protocol):
    """One deployment in one target. Every method raises ProvisioningError."""

    def observe(self) -> Observation:
        """What there is. Reads only."""

    def apply(self, seen: Observation) -> Iterator[Step]:
        """Makes what is missing and changes what differs, one call a step, the call before its yield.

        It ends when nothing more can be done on what was `seen`, whether all is there or something has to be
        waited for: the next `observe` tells which.
        """

    def remove(self, seen: Observation) -> Iterator[Step]:
        """Takes everything away, dependents first, one call a step; ends as `apply` does."""

    def close(self) -> None:
        """Lets connections go."""


class ProvisioningError(ControlPlaneError):
    """A target refused, or did not answer; the text says what to do.

    Attributes:
        transient: the same call may succeed by itself later.
        wait: seconds until then, if the target says so.
        code: what the target called it.
    """

    def __init__(self, message: str, *, transient: bool = False, wait: float = 0.0, code: str = "") -> None:
        super().__init__(message)
        self.transient, self.wait, self.code = transient, wait, code


class ThrottledError(ProvisioningError):
    """Too many calls: the target asks for patience."""

    def __init__(self, message: str, *, wait: float = 0.0, code: str = "") -> None:
        super().__init__(message, transient=True, wait=wait, code=code)
