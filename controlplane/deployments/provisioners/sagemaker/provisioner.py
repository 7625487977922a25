"""Provision one deployment on SageMaker, in the order of its resources' dependencies.

    created:  checkpoint, model, endpoint's configuration, endpoint, base component, archives, adapters
    removed:  adapters, base component, endpoint, its configurations, models, archives, checkpoint

Each step is one call. Steps depend only on the observed state, so a lost or repeated step does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

from contracts.base_routes import SageMakerTarget
from controlplane.deployments.containers.images import DEFAULT_IMAGE, Family
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import (
    Desired,
    Endpoint,
    Observation,
    PlacedAdapter,
    Resource,
    State,
    Step,
)
from controlplane.deployments.provisioners.sagemaker.adapters import Adapters
from controlplane.deployments.provisioners.sagemaker.alarms import Alarms
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.autoscaling import Autoscaling
from controlplane.deployments.provisioners.sagemaker.base_component import BaseComponent, taken_back_text
from controlplane.deployments.provisioners.sagemaker.interfaces import container_interface
from controlplane.deployments.provisioners.sagemaker.resources import (
    ObservedResources,
    instances_by_type,
    model_environments,
    observe_resources,
)
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.provisioners.sagemaker.specs import Specs
from controlplane.deployments.provisioners.sagemaker.steps import Steps

Hosting = Deployment.Hosting
_NAMING = {
    Hosting.COMPONENTS: "components",
    Hosting.PRELOADED: "name",
    Hosting.FUSED: "name",
    Hosting.ON_DEMAND: "reference",
}
_UP = (State.READY, State.CHANGING)


class SageMakerProvisioner:
    """Provisioner for SageMaker. `heartbeat` is called during transfers, to renew the lease."""

    def __init__(
        self, target: Target, desired: Desired, account: ServicesAccount, *, heartbeat: Callable[[], None]
    ) -> None:
        self._target, self._desired, self._account = target, desired, account
        self._store = Store(account, target, heartbeat=heartbeat)
        self._specs = Specs.from_target(target, desired, self._store)
        self._names = self._specs.names
        self._steps = Steps(account, self._store, self._specs, desired, heartbeat=heartbeat)
        self._adapters = Adapters(account, self._store, self._names, desired, heartbeat=heartbeat)
        self._autoscaling = Autoscaling(account, self._names, desired)
        self._alarms = Alarms(account, self._names)
        self._base = BaseComponent(account, self._specs, desired, self._adapters, self._alarms)

    @classmethod
    def from_target(cls, target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Self:
        """Return the provisioner.

        Raises:
            ProvisioningError: no credentials exist, or they cannot assume the target's role.
        """
        return cls(target, desired, ServicesAccount.from_target(target), heartbeat=heartbeat)

    def close(self) -> None:
        self._account.close()

    def observe(self) -> Observation:
        seen = observe_resources(
            self._account,
            self._store,
            self._names,
            self._desired,
            checkpoint_folder=self._specs.checkpoint_folder.rpartition("/")[0],
            archive_urls=self._adapters.urls(),
        )
        seen = replace(seen, autoscaling=self._autoscaling.read())
        if self._specs.family is Family.TGI:
            seen = replace(seen, environments=model_environments(self._account, seen.models))
        if self._desired.had_rollouts:
            seen = replace(seen, alarms=self._alarms.read())
        adapters = self._placed(seen)
        return Observation(
            resources=self._resources(seen),
            endpoints=(self._route_endpoint(seen),) if self._serves(seen) else (),
            adapters=adapters,
            waiting=self._waiting(seen),
            complete=self._complete(seen, adapters),
            copies_complete=self._copies_complete(seen),
            empty=self._empty(seen),
            failed=self._failed(seen),
            drift=self._drift(seen),
            unscaled=seen.autoscaling.refused,
            scaling_activities=seen.autoscaling.scaled,
            running=seen.copies[1],
            instances=seen.instances,
            progress=self._base.progress(seen),
            detail=seen,
        )

    def apply(self, seen: Observation) -> Iterator[Step]:
        found: ObservedResources = seen.detail
        names = self._specs.model_name, self._specs.config_name, self._names.endpoint, self._names.base
        if taken := found.foreign.intersection(names):
            raise self._names.refusal(min(taken))
        yield from self._steps.files(found)
        yield from self._steps.records(found)
        stale = self._config_difference(found) and not self._config_taken_back(found)
        if found.endpoint.state is not State.READY or stale:
            yield from self._endpoint(found)
            return
        yield from self._base.apply(found)
        held = None
        if self._desired.hosting == Hosting.COMPONENTS and found.base.state in _UP:
            held = yield from self._adapters.apply(found)
        if found.base.state in _UP:
            yield from self._autoscaling.apply(found.autoscaling)
        if found.base.state is State.READY and found.model_in_force == self._specs.model_name:
            yield from self._tidy(found)
        if held is not None:
            raise held

    def remove(self, seen: Observation) -> Iterator[Step]:
        found: ObservedResources = seen.detail
        cause = "the deployment is being removed"
        yield from self._autoscaling.remove(found.autoscaling, cause)
        if found.adapters:
            yield from self._adapters.remove(found, cause)
            return
        if found.base.state is not State.ABSENT:
            if found.base.state is not State.LEAVING:
                yield self._steps.delete_resource("inference_component", self._names.base, cause)
            return
        if not self._desired.endpoint_is_shared:
            yield from self._steps.remove_endpoint(found, cause)
            if found.endpoint.state is not State.ABSENT:
                return
        yield from self._steps.remove_rest(found, cause)
        yield from self._alarms.remove(found.alarms, cause)

    def _endpoint(self, seen: ObservedResources) -> Iterator[Step]:
        name, config = self._names.endpoint, self._specs.config_name
        match seen.endpoint.state:
            case State.ABSENT:
                yield self._steps.create_endpoint()
            case State.READY:
                self._account.call("update_endpoint", name, EndpointName=name, EndpointConfigName=config)
                yield Step("update_endpoint", name, self._config_difference(seen))
            case State.FAILED if self._desired.retry and seen.base.state is State.ABSENT:
                yield self._steps.delete_resource("endpoint", name, "it failed and is recreated")

    def _tidy(self, seen: ObservedResources) -> Iterator[Step]:
        """Delete resources of an earlier desired state."""
        if self._desired.stage is None:
            yield from self._alarms.remove(seen.alarms, "no rollout is in progress")
        keep = {*self._specs.data.keys, *self._adapters.keys()}
        going = {sha12 for name in self._desired.keep if (sha12 := name.rpartition(".")[2])}
        old = {key for key in seen.archives - keep if key.rpartition("/")[2][:12] not in going}
        yield from self._steps.tidy(seen, old)

    def _serves(self, seen: ObservedResources) -> bool:
        return (
            seen.endpoint.state in _UP
            and seen.base.state in _UP
            and (seen.copies[1] > 0 or self._desired.min_copies == 0)
        )

    def _route_endpoint(self, seen: ObservedResources) -> Endpoint:
        naming = _NAMING[Hosting(self._desired.hosting)]
        target = SageMakerTarget(self._target.region, self._names.endpoint, self._names.base, naming)
        loaded = seen.loaded_adapters if self._specs.family is Family.TGI else None
        if not self._specs.serves_adapters:
            loaded = ()
        by_name = self._desired.hosting == Hosting.PRELOADED
        interface = container_interface(self._specs.image, self._target, by_name=by_name)
        target = replace(target, loaded=loaded, **interface)
        return Endpoint("sagemaker", self._target.endpoint_url, sagemaker=target)

    def _placed(self, seen: ObservedResources) -> dict[str, PlacedAdapter]:
        if self._desired.hosting == Hosting.COMPONENTS:
            return self._adapters.placed(seen)
        if self._desired.hosting != Hosting.PRELOADED:
            return {}
        current = seen.base.state is State.READY and seen.model_in_force == self._specs.model_name
        state = State.READY if current else State.STARTING
        return {ref.name: PlacedAdapter(self._names.base, state) for ref in self._desired.adapters}

    def _resources(self, seen: ObservedResources) -> tuple[Resource, ...]:
        endpoint, base, desired = seen.endpoint, seen.base, self._desired
        # Names contain a digest of their content, so an equal name means equal content.
        config, model = seen.config_in_force, seen.model_in_force
        named = {"image": desired.image or DEFAULT_IMAGE, "base": desired.checkpoint}
        if model != self._specs.model_name:
            named = dict.fromkeys(named, f"as {model} has it")
        instances = desired.instance_type if config == self._specs.config_name else f"as {config} has it"
        single = [
            Resource(
                "endpoint",
                endpoint.name,
                endpoint.state,
                endpoint.reason,
                has={"instance_type": instances, **_counted(seen)},
                stale=bool(self._config_difference(seen)),
            ),
            Resource(
                "base component",
                base.name,
                base.state,
                base.reason,
                has={"copies": str(seen.copies[1]), **named},
                stale=bool(self._base.difference(seen)),
            ),
        ]
        single = [item for item in single if item.state is not State.ABSENT]
        parts = [Resource("endpoint configuration", name, State.READY) for name in sorted(seen.configs)]
        parts += [Resource("model", name, State.READY) for name in sorted(seen.models)]
        return (*single, *parts)

    def _waiting(self, seen: ObservedResources) -> str:
        slow = (State.STARTING, State.CHANGING, State.LEAVING)
        for kind, item in (("endpoint", seen.endpoint), ("base component", seen.base)):
            if item.state in slow:
                return f"the {kind} {item.name} is {item.state}"
        count = sum(1 for item in seen.adapters.values() if item.state in slow)
        if count:
            return f"{count} adapters are being placed"
        least, running = self._desired.min_copies, seen.copies[1]
        return f"{running} of {least} copies run" if running < least else ""

    def _complete(self, seen: ObservedResources, adapters: dict[str, PlacedAdapter]) -> bool:
        wanted = {ref.name for ref in self._desired.adapters}
        return (
            self._copies_complete(seen)
            and self._base_in_force(seen)
            and seen.configs <= {self._specs.config_name}
            and seen.models <= {self._specs.model_name}
            and not seen.wrong_archives
            and (self._desired.stage is not None or not seen.alarms)
            and all(adapters[name].state is State.READY for name in wanted)
            and (set(adapters) <= wanted | self._desired.keep)
        )

    def _copies_complete(self, seen: ObservedResources) -> bool:
        return (
            self._serves(seen)
            and seen.config_in_force == self._specs.config_name
            and self._base.in_bounds(seen)
            and seen.copies[1] >= self._desired.min_copies
            and self._autoscaling.complete(seen.autoscaling)
            and (self._desired.hosting == Hosting.PRELOADED or self._base_in_force(seen))
        )

    def _base_in_force(self, seen: ObservedResources) -> bool:
        return seen.base.state is State.READY and not self._base.difference(seen)

    def _empty(self, seen: ObservedResources) -> bool:
        shared = self._desired.endpoint_is_shared
        return (
            not seen.adapters
            and seen.base.state is State.ABSENT
            and (shared or (seen.endpoint.state is State.ABSENT and not seen.configs))
            and not seen.models
            and not seen.autoscaling.any
            and not seen.archives
            and not seen.checkpoint
            and not seen.alarms
        )

    def _config_difference(self, seen: ObservedResources) -> str:
        """Return how the endpoint differs from the desired state; "" if it does not."""
        has, wanted = seen.config_in_force, self._specs.config_name
        return "" if has == wanted else f"its configuration is {has}, desired {wanted}"

    def _config_taken_back(self, seen: ObservedResources) -> bool:
        tried = self._config_difference(seen) in self._desired.tried
        return seen.endpoint.state is State.READY and tried and not self._desired.retry

    def _failed(self, seen: ObservedResources) -> str:
        if self._config_taken_back(seen):
            return taken_back_text(seen.endpoint, self._config_difference(seen))
        if self._base.taken_back(seen):
            return taken_back_text(seen.base, self._base.difference(seen))
        broken = (item for item in (seen.endpoint, seen.base) if item.state is State.FAILED)
        return next((item.reason for item in broken), "")

    def _drift(self, seen: ObservedResources) -> tuple[str, ...]:
        """Return external changes: resources that matched the desired state and were changed since."""
        found = []
        # An autoscaler follows its schedule's bounds itself, so its changes are no drift.
        fixed = self._desired.scaling is None
        if fixed and seen.base.state is State.READY and not self._base.in_bounds(seen):
            found.append(f"{self._names.base} has {seen.copies[0]} copies, not {self._base.wanted_copies()}")
        found += [f"{name} holds another archive than its adapter's" for name in sorted(seen.wrong_archives)]
        return tuple(found)


def _counted(seen: ObservedResources) -> dict[str, str]:
    counted = {} if seen.instances is None else {"instances": str(seen.instances)}
    by_type = instances_by_type(seen)
    return counted | ({"instances_by_type": by_type} if by_type else {})
