"""Provision one deployment on SageMaker without inference components: its model is the endpoint's variant.

    created:  checkpoint, model, endpoint's configuration, endpoint
    removed:  endpoint, its configurations, models, checkpoint

Each copy is an instance of the variant. A change of the model is an update of the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, Self

from contracts.base_routes import SageMakerTarget
from controlplane.deployments.containers.images import DEFAULT_IMAGE, FORMS, Family
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import (
    Desired,
    Endpoint,
    Observation,
    Progress,
    Resource,
    State,
    Step,
)
from controlplane.deployments.provisioners.sagemaker.alarms import Alarms
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.autoscaling import Autoscaling
from controlplane.deployments.provisioners.sagemaker.base_component import taken_back_text
from controlplane.deployments.provisioners.sagemaker.interfaces import container_interface
from controlplane.deployments.provisioners.sagemaker.names import VARIANT
from controlplane.deployments.provisioners.sagemaker.resources import (
    ObservedResources,
    instances_by_type,
    observe_resources,
)
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.provisioners.sagemaker.specs import Specs
from controlplane.deployments.provisioners.sagemaker.steps import Steps

_UP: Final = (State.READY, State.CHANGING)
_REMOVED: Final = "the deployment is being removed"


class EndpointProvisioner:
    """Provisioner for hosting endpoint. `heartbeat` is called during transfers, to renew the lease."""

    def __init__(
        self, target: Target, desired: Desired, account: ServicesAccount, *, heartbeat: Callable[[], None]
    ) -> None:
        self._target, self._desired, self._account = target, desired, account
        self._store = Store(account, target, heartbeat=heartbeat)
        self._specs = Specs.from_target(target, desired, self._store)
        self._names = self._specs.names
        self._steps = Steps(account, self._store, self._specs, desired, heartbeat=heartbeat)
        self._autoscaling = Autoscaling(account, self._names, desired)
        self._alarms = Alarms(account, self._names, variant=True)

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
            archive_urls={},
        )
        seen = replace(seen, autoscaling=self._autoscaling.read())
        if self._desired.had_rollouts:
            seen = replace(seen, alarms=self._alarms.read())
        copies_complete = self._copies_complete(seen)
        return Observation(
            resources=self._resources(seen),
            endpoints=(self._route_endpoint(),) if self._serves(seen) else (),
            waiting=self._waiting(seen),
            complete=copies_complete and self._tidied(seen),
            copies_complete=copies_complete,
            empty=self._empty(seen),
            failed=self._failed(seen),
            drift=self._drift(seen),
            unscaled=seen.autoscaling.refused,
            scaling_activities=seen.autoscaling.scaled,
            running=_copies(seen)[1],
            instances=seen.instances,
            progress=self._progress(seen),
            detail=seen,
        )

    def apply(self, seen: Observation) -> Iterator[Step]:
        found: ObservedResources = seen.detail
        names = self._specs.model_name, self._specs.config_name, self._names.endpoint
        if taken := found.foreign.intersection(names):
            raise self._names.refusal(min(taken))
        yield from self._steps.files(found)
        yield from self._steps.records(found)
        yield from self._endpoint(found)
        if found.endpoint.state in _UP and (found.autoscaling.any or not self._difference(found)):
            yield from self._autoscaling.apply(found.autoscaling)
        if found.endpoint.state is State.READY and not self._difference(found):
            if self._desired.stage is None:
                yield from self._alarms.remove(found.alarms, "no rollout is in progress")
            yield from self._steps.tidy(found, set(found.archives - self._specs.data.keys))

    def remove(self, seen: Observation) -> Iterator[Step]:
        found: ObservedResources = seen.detail
        yield from self._autoscaling.remove(found.autoscaling, _REMOVED)
        yield from self._steps.remove_endpoint(found, _REMOVED)
        if found.endpoint.state is State.ABSENT:
            yield from self._steps.remove_rest(found, _REMOVED)
            yield from self._alarms.remove(found.alarms, _REMOVED)

    def _endpoint(self, seen: ObservedResources) -> Iterator[Step]:
        name, stage = self._names.endpoint, self._desired.stage
        match seen.endpoint.state:
            case State.ABSENT:
                yield self._steps.create_endpoint()
            case State.CHANGING if stage is not None and stage.rolling_back:
                yield from self._alarms.ring(seen.alarms)
            case State.READY if self._taken_back(seen):
                return
            case State.READY if cause := self._difference(seen):
                yield from self._update(seen, cause)
            case State.READY if not self._in_bounds(seen):
                desired = self._desired
                count = min(max(_copies(seen)[0], desired.min_copies), desired.max_copies)
                self._account.call(
                    "update_endpoint_weights_and_capacities",
                    name,
                    EndpointName=name,
                    DesiredWeightsAndCapacities=[{"VariantName": VARIANT, "DesiredInstanceCount": count}],
                )
                cause = f"{_copies(seen)[0]} copies, desired {self._wanted_copies()}"
                yield Step("update_endpoint_weights_and_capacities", name, cause)
            case State.FAILED if self._desired.retry:
                yield self._steps.delete_resource("endpoint", name, "it failed and is recreated")

    def _update(self, seen: ObservedResources, cause: str) -> Iterator[Step]:
        """Update the endpoint at once, or as the active rollout prescribes; the number of copies stays."""
        name, stage = self._names.endpoint, self._desired.stage
        arguments: dict[str, Any] = {
            "EndpointName": name,
            "EndpointConfigName": self._specs.config_name,
            "RetainAllVariantProperties": True,
        }
        if stage is not None:
            if stage.paused:
                return
            if not stage.rolling_back:
                yield from self._alarms.prepare(stage, seen.alarms)
            arguments["DeploymentConfig"] = _of_instances(self._alarms.config(stage))
        if seen.autoscaling.any and self._changes_types(seen):
            yield from self._autoscaling.remove(seen.autoscaling, "the endpoint gets other instance types")
        self._account.call("update_endpoint", name, **arguments)
        yield Step("update_endpoint", name, cause)

    def _changes_types(self, seen: ObservedResources) -> bool:
        """Return True if the update changes instance types, which SageMaker refuses for a scaled variant."""
        has = seen.config_in_force
        found = self._account.call("describe_endpoint_config", has, EndpointConfigName=has)
        (old,), (new,) = found["ProductionVariants"], self._specs.config["ProductionVariants"]
        return any(old.get(name) != new.get(name) for name in ("InstanceType", "InstancePools"))

    def _difference(self, seen: ObservedResources) -> str:
        """Return how the endpoint differs from the desired state; "" if it does not."""
        has, wanted = seen.config_in_force, self._specs.config_name
        return "" if has in ("", wanted) else f"its configuration is {has}, desired {wanted}"

    def _taken_back(self, seen: ObservedResources) -> bool:
        """Return True if SageMaker rolled back an update that is still wanted and not to be repeated yet."""
        tried = self._difference(seen) in self._desired.tried
        return seen.endpoint.state is State.READY and tried and not self._desired.retry

    def _progress(self, seen: ObservedResources) -> Progress:
        """Return the rollout's progress: either none of the copies is new or all are."""
        stage, new = self._desired.stage, seen.endpoint.state is State.READY and not self._difference(seen)
        taken = stage is not None and not stage.rolling_back and self._taken_back(seen)
        return Progress(
            ready_copies=_copies(seen)[1] if new else 0,
            failed=seen.endpoint.reason if seen.endpoint.state is State.FAILED else "",
            rolled_back=taken_back_text(seen.endpoint, self._difference(seen)) if taken else "",
        )

    def _in_bounds(self, seen: ObservedResources) -> bool:
        return self._desired.min_copies <= _copies(seen)[0] <= self._desired.max_copies

    def _wanted_copies(self) -> str:
        least, most = self._desired.min_copies, self._desired.max_copies
        return str(least) if least == most else f"{least} to {most}"

    def _serves(self, seen: ObservedResources) -> bool:
        return seen.endpoint.state in _UP and _copies(seen)[1] > 0

    def _route_endpoint(self) -> Endpoint:
        # The bundled worker takes an adapter's reference; other containers know the names in their own files.
        naming = "reference" if self._desired.image_family == Family.WORKER else "name"
        target = SageMakerTarget(self._target.region, self._names.endpoint, "", naming)
        family = self._specs.family
        loaded = None if self._specs.serves_adapters and family not in FORMS else ()
        interface = container_interface(self._specs.image, self._target, by_name=False)
        target = replace(target, loaded=loaded, **interface)
        return Endpoint("sagemaker", self._target.endpoint_url, sagemaker=target)

    def _resources(self, seen: ObservedResources) -> tuple[Resource, ...]:
        endpoint, desired = seen.endpoint, self._desired
        stale = bool(self._difference(seen))
        has = {
            "image": desired.image or DEFAULT_IMAGE,
            "base": desired.checkpoint,
            "instance_type": desired.instance_type,
        }
        if stale:
            has = dict.fromkeys(has, f"as {seen.config_in_force} has it")
        counts = {"copies": str(_copies(seen)[1]), "instances": str(seen.instances or 0)}
        if by_type := instances_by_type(seen):
            counts["instances_by_type"] = by_type
        single = Resource("endpoint", endpoint.name, endpoint.state, endpoint.reason, has | counts, stale)
        parts = [Resource("endpoint configuration", name, State.READY) for name in sorted(seen.configs)]
        parts += [Resource("model", name, State.READY) for name in sorted(seen.models)]
        return (*((single,) if endpoint.state is not State.ABSENT else ()), *parts)

    def _waiting(self, seen: ObservedResources) -> str:
        if seen.endpoint.state in (State.STARTING, State.CHANGING, State.LEAVING):
            return f"the endpoint {seen.endpoint.name} is {seen.endpoint.state}"
        least, running = self._desired.min_copies, _copies(seen)[1]
        return f"{running} of {least} copies run" if running < least else ""

    def _copies_complete(self, seen: ObservedResources) -> bool:
        return (
            seen.endpoint.state is State.READY
            and not self._difference(seen)
            and self._in_bounds(seen)
            and _copies(seen)[1] >= self._desired.min_copies
            and self._autoscaling.complete(seen.autoscaling)
        )

    def _tidied(self, seen: ObservedResources) -> bool:
        return (
            seen.configs <= {self._specs.config_name}
            and seen.models <= {self._specs.model_name}
            and (self._desired.stage is not None or not seen.alarms)
        )

    def _empty(self, seen: ObservedResources) -> bool:
        left = (seen.configs, seen.models, seen.archives, seen.checkpoint, seen.alarms)
        return seen.endpoint.state is State.ABSENT and not any(left) and not seen.autoscaling.any

    def _failed(self, seen: ObservedResources) -> str:
        if self._taken_back(seen):
            return taken_back_text(seen.endpoint, self._difference(seen))
        return seen.endpoint.reason if seen.endpoint.state is State.FAILED else ""

    def _drift(self, seen: ObservedResources) -> tuple[str, ...]:
        """Return external changes. An autoscaler's own changes are none."""
        ready = seen.endpoint.state is State.READY
        if self._desired.scaling is not None or not ready or self._in_bounds(seen):
            return ()
        return (f"{self._names.endpoint} has {_copies(seen)[0]} copies, not {self._wanted_copies()}",)


def _copies(seen: ObservedResources) -> tuple[int, int]:
    """Return the (desired, running) instances of the variant, as SageMaker reports them."""
    variants = seen.endpoint.description.get("ProductionVariants", ())
    found: dict[str, Any] = next((item for item in variants if item["VariantName"] == VARIANT), {})
    return int(found.get("DesiredInstanceCount", 0)), int(found.get("CurrentInstanceCount", 0))


def _of_instances(config: dict[str, Any]) -> dict[str, Any]:
    """Return a component's DeploymentConfig for an endpoint, whose batches count instances."""
    policy = dict(config["RollingUpdatePolicy"])
    for name in ("MaximumBatchSize", "RollbackMaximumBatchSize"):
        if name in policy:
            policy[name] = policy[name] | {"Type": "INSTANCE_COUNT"}
    return config | {"RollingUpdatePolicy": policy}
