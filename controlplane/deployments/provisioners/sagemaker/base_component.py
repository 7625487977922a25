"""The base model's inference component: created, updated as a rollout prescribes, scaled, recreated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from controlplane.deployments.provisioners.base import Desired, Progress, State, Step
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.adapters import Adapters
from controlplane.deployments.provisioners.sagemaker.alarms import Alarms
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason
from controlplane.deployments.provisioners.sagemaker.names import VARIANT
from controlplane.deployments.provisioners.sagemaker.resources import Component, ObservedResources
from controlplane.deployments.provisioners.sagemaker.specs import Specs


class BaseComponent:
    """Base component of one deployment; `adapters` are placed over it, `alarms` watch its rollouts."""

    def __init__(
        self, account: Account, specs: Specs, desired: Desired, adapters: Adapters, alarms: Alarms
    ) -> None:
        self._account, self._specs, self._desired = account, specs, desired
        self._names, self._stage = specs.names, desired.stage
        self._adapters, self._alarms = adapters, alarms

    def progress(self, seen: ObservedResources) -> Progress:
        """Return the rollout's progress.

        SageMaker does not count copies by version, so either none of them is new or all are.
        """
        stage, there = self._stage, not self.difference(seen) and seen.base.state is State.READY
        taken = stage is not None and not stage.rolling_back and self.taken_back(seen)
        return Progress(
            ready_copies=seen.copies[1] if there else 0,
            failed=seen.base.reason if seen.base.state is State.FAILED else "",
            rolled_back=taken_back_text(seen.base, self.difference(seen)) if taken else "",
        )

    def difference(self, seen: ObservedResources) -> str:
        """Return how the base component differs from the desired state; "" if it does not."""
        if seen.base.state is State.ABSENT:
            return ""
        if seen.model_in_force != self._specs.model_name:
            return f"its model is {seen.model_in_force}, desired {self._specs.model_name}"
        if set(seen.requirements) - {""} and set(seen.requirements) != set(self._specs.requirements):
            return f"it is specified for {', '.join(seen.requirements)}"
        for kind, wanted in self._specs.requirements.items():
            has = seen.requirements.get(kind, seen.requirements.get("", {}))
            wrong = [name for name, value in wanted.items() if has.get(name) != value]
            if wrong:
                return f"{wrong[0]} is {has.get(wrong[0])}"
        several = len(self._specs.requirements) > 1
        return "it is specified for one instance type" if several and "" in seen.requirements else ""

    def taken_back(self, seen: ObservedResources) -> bool:
        """Return True if SageMaker rolled back an update that is still wanted and not to be repeated yet."""
        tried = self.difference(seen) in self._desired.tried
        return seen.base.state is State.READY and tried and not self._desired.retry

    def apply(self, seen: ObservedResources) -> Iterator[Step]:
        """Apply the desired state to the base component; see `Provisioner.apply`."""
        name = self._names.base
        match seen.base.state:
            case State.ABSENT:
                self._account.make(
                    "create_inference_component",
                    name,
                    InferenceComponentName=name,
                    EndpointName=self._names.endpoint,
                    VariantName=VARIANT,
                    **self._specs.base,
                    RuntimeConfig={"CopyCount": self._desired.min_copies},
                    Tags=self._names.tags(),
                )
                yield Step("create_inference_component", name, "it does not exist")
            case State.CHANGING if self._stage is not None and self._stage.rolling_back:
                yield from self._alarms.ring(seen.alarms)
            case State.READY if self.taken_back(seen):
                return
            case State.READY if cause := self.difference(seen):
                yield from self._update(seen, cause)
            case State.READY if not self.in_bounds(seen):
                count = min(max(seen.copies[0], self._desired.min_copies), self._desired.max_copies)
                self._account.call(
                    "update_inference_component_runtime_config",
                    name,
                    InferenceComponentName=name,
                    DesiredRuntimeConfig={"CopyCount": count},
                )
                cause = f"{seen.copies[0]} copies, desired {self.wanted_copies()}"
                yield Step("update_inference_component_runtime_config", name, cause)
            case State.FAILED if self._desired.retry and not seen.adapters:
                self._account.take_away("delete_inference_component", name, InferenceComponentName=name)
                yield Step("delete_inference_component", name, "it failed and is recreated")
            case State.FAILED if self._desired.retry:
                yield from self._adapters.remove(seen, "its base failed and is recreated")

    def _update(self, seen: ObservedResources, cause: str) -> Iterator[Step]:
        """Update all copies at once, or as the active rollout prescribes."""
        name, stage = self._names.base, self._stage
        arguments: dict[str, Any] = {"InferenceComponentName": name, **self._specs.base}
        if stage is not None:
            if stage.paused:
                return
            if not stage.rolling_back:
                yield from self._alarms.prepare(stage, seen.alarms)
            arguments["DeploymentConfig"] = self._alarms.config(stage)
        self._account.call("update_inference_component", name, **arguments)
        yield Step("update_inference_component", name, cause)

    def in_bounds(self, seen: ObservedResources) -> bool:
        """Return True if SageMaker's desired number of copies is within the bounds."""
        return self._desired.min_copies <= seen.copies[0] <= self._desired.max_copies

    def wanted_copies(self) -> str:
        """Return the bounds of the number of copies, as text."""
        least, most = self._desired.min_copies, self._desired.max_copies
        return str(least) if least == most else f"{least} to {most}"


def taken_back_text(item: Component, difference: str) -> str:
    """Return what to do about an update of `item` that SageMaker rolled back."""
    failure = item.description.get("FailureReason")
    reason = failure_reason(str(failure)) if failure else ""
    return (
        f"SageMaker took the update of {item.name} back ({difference}): what was there serves on; "
        "change what made it, or retry. "
        + (reason or "See the log of the copies that did not start in CloudWatch.")
    )
