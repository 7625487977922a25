"""Read a deployment's resources from the account in a few calls, whatever the number of adapters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controlplane.deployments.containers.tgi import adapters_in
from controlplane.deployments.provisioners.base import Desired, PlacedAdapter, State
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.autoscaling import NOTHING_REGISTERED, RegisteredScaling
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason
from controlplane.deployments.provisioners.sagemaker.names import Names

_STATES: Final[Mapping[str, State]] = {
    "Creating": State.STARTING,
    "InService": State.READY,
    "Updating": State.CHANGING,
    "SystemUpdating": State.CHANGING,
    "RollingBack": State.CHANGING,
    "Deleting": State.LEAVING,
    "Failed": State.FAILED,
    "OutOfService": State.FAILED,
    "UpdateRollbackFailed": State.FAILED,
}
INSPECTED_ADAPTERS: Final = 10
"""Adapters per observation whose archive is compared; the next one takes the next adapters."""


@dataclass(frozen=True, slots=True)
class Component:
    """A component or the endpoint; `description` is the complete Describe response."""

    name: str
    state: State
    reason: str = ""
    description: Mapping[str, Any] = field(default_factory=dict)


ABSENT: Final = Component("", State.ABSENT)


@dataclass(frozen=True, slots=True)
class ObservedResources:
    """Observed resources of a deployment.

    Attributes:
        adapters: components by name.
        archives: keys of the deployment's adapter archives and preloaded archives.
        foreign: resources with our names that are not ours; kept apart so that a removal skips them.
        wrong_archives: adapter components that hold another archive than they should.
        alarms: states of our alarms, if a rollout may have created some.
        environments: environment of each of our models; empty for families where nothing depends on it.
    """

    endpoint: Component = ABSENT
    base: Component = ABSENT
    adapters: Mapping[str, Component] = field(default_factory=dict)
    configs: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    archives: frozenset[str] = frozenset()
    checkpoint: frozenset[str] = frozenset()
    wrong_archives: frozenset[str] = frozenset()
    autoscaling: RegisteredScaling = NOTHING_REGISTERED
    alarms: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def config_in_force(self) -> str:
        return str(self.endpoint.description.get("EndpointConfigName", ""))

    @property
    def model_in_force(self) -> str:
        return next((str(spec.get("ModelName", "")) for spec in self._specifications), "")

    @property
    def requirements(self) -> dict[str, Mapping[str, Any]]:
        """ComputeResourceRequirements of the base by instance type; "" for a specification for all types."""
        return {
            str(spec.get("InstanceType", "")): spec.get("ComputeResourceRequirements", {})
            for spec in self._specifications
        }

    @property
    def _specifications(self) -> Sequence[Mapping[str, Any]]:
        """Specifications of the base, one for each instance type of a variant with pools."""
        one = self.base.description.get("Specification")
        many: Sequence[Mapping[str, Any]] = self.base.description.get("Specifications", ())
        return many if one is None else [one]

    @property
    def loaded_adapters(self) -> tuple[str, ...]:
        """Adapters that every running TGI container has loaded; during an update, all models count."""
        settled = self.base.state is State.READY and self.model_in_force in self.environments
        models = [self.model_in_force] if settled else list(self.environments)
        names = [adapters_in(self.environments[name]) for name in models]
        return tuple(sorted(frozenset.intersection(*names))) if names else ()

    @property
    def copies(self) -> tuple[int, int]:
        """(desired, running) copies of the base, as SageMaker reports them."""
        runtime = self.base.description.get("RuntimeConfig", {})
        return int(runtime.get("DesiredCopyCount", 0)), int(runtime.get("CurrentCopyCount", 0))

    @property
    def instances(self) -> int | None:
        """Number of instances of the endpoint now; None if SageMaker does not report it."""
        variants = self.endpoint.description.get("ProductionVariants", ())
        counts = [item["CurrentInstanceCount"] for item in variants if "CurrentInstanceCount" in item]
        return sum(counts) if counts else None


def instances_by_type(seen: ObservedResources) -> str:
    """Return the running instances of each pool, as `ml.g5.12xlarge=1 ml.g6.12xlarge=0`; "" without pools."""
    variants = seen.endpoint.description.get("ProductionVariants", ())
    pools = [pool for variant in variants for pool in variant.get("InstancePools", ())]
    return " ".join(f"{pool['InstanceType']}={pool['CurrentInstanceCount']}" for pool in pools)


def observe_resources(
    account: Account,
    store: Store,
    names: Names,
    desired: Desired,
    *,
    checkpoint_folder: str,
    archive_urls: Mapping[str, str],
    clock: Callable[[], float] = time.time,
) -> ObservedResources:
    """Read the deployment's resources.

    Args:
        archive_urls: URL of the archive that each adapter component should hold.

    Raises:
        ProvisioningError: AWS refuses a call.
    """
    foreign: set[str] = set()
    endpoint = _describe(account, names, "endpoint", names.endpoint, "EndpointStatus", foreign)
    base = _describe(account, names, "inference_component", names.base, "InferenceComponentStatus", foreign)
    adapters: dict[str, Component] = {}
    if endpoint.state is not State.ABSENT:
        listed = account.pages(
            "list_inference_components",
            "InferenceComponents",
            names.endpoint,
            EndpointNameEquals=names.endpoint,
            PaginationConfig={"PageSize": 100},
        )
        found = ((str(item["InferenceComponentName"]), item) for item in listed)
        adapters = {
            name: Component(name, _STATES[item["InferenceComponentStatus"]], description=item)
            for name, item in found
            if names.is_adapter(name)
        }
    adapters, wrong = _inspect_adapters(account, adapters, archive_urls, clock)
    config_arns = {
        str(item["EndpointConfigName"]): str(item["EndpointConfigArn"])
        for item in account.pages(
            "list_endpoint_configs", "EndpointConfigs", names.endpoint, NameContains=f"{names.endpoint}-"
        )
        if names.is_config(item["EndpointConfigName"])
    }
    model_arns = {
        str(item["ModelName"]): str(item["ModelArn"])
        for item in account.pages("list_models", "Models", names.base, NameContains=f"{names.base}-")
        if names.is_model(item["ModelName"])
    }
    configs, models = (_ours(account, names, arns) for arns in (config_arns, model_arns))
    return ObservedResources(
        endpoint=endpoint,
        base=base,
        adapters=adapters,
        configs=configs,
        models=models,
        foreign=frozenset(foreign | set(config_arns | model_arns)) - configs - models,
        archives=frozenset(
            store.keys(f"adapters/{desired.deployment}") | store.keys(f"preloaded/{desired.deployment}")
        ),
        checkpoint=frozenset(store.keys(checkpoint_folder)) if checkpoint_folder else frozenset(),
        wrong_archives=wrong,
    )


def model_environments(account: Account, models: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the environment of each model's container, by name."""
    found = {}
    for name in sorted(models):
        if (described := account.find("describe_model", name, ModelName=name)) is not None:
            found[name] = dict(described.get("PrimaryContainer", {}).get("Environment", {}))
    return found


def placed(component: Component) -> PlacedAdapter:
    """Return an adapter's component in terms that all targets share."""
    return PlacedAdapter(component.name, component.state, component.reason)


def _describe(
    account: Account, names: Names, kind: str, name: str, status: str, foreign: set[str]
) -> Component:
    """Return a described resource; ABSENT if it is missing, or not ours, which adds its name to `foreign`."""
    argument = "EndpointName" if kind == "endpoint" else "InferenceComponentName"
    description = account.find(f"describe_{kind}", name, **{argument: name})
    if description is None:
        return ABSENT
    arn = str(description["EndpointArn" if kind == "endpoint" else "InferenceComponentArn"])
    if not names.is_ours(account.tags(arn)):
        foreign.add(name)
        return ABSENT
    state = _STATES[description[status]]
    reason = failure_reason(str(description.get("FailureReason", ""))) if state is State.FAILED else ""
    return Component(name, state, reason, description)


def _ours(account: Account, names: Names, arns: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the resources that carry our tags."""
    return frozenset(name for name, arn in arns.items() if names.is_ours(account.tags(arn)))


def _inspect_adapters(
    account: Account,
    adapters: Mapping[str, Component],
    archive_urls: Mapping[str, str],
    clock: Callable[[], float],
) -> tuple[dict[str, Component], frozenset[str]]:
    """Return the adapters with the reasons of failed ones, and the names of those with a wrong archive.

    Each call describes at most INSPECTED_ADAPTERS failed adapters, and as many ready ones in rotation.
    """
    found, wrong = dict(adapters), set()
    ready = sorted(name for name in adapters if adapters[name].state is State.READY and name in archive_urls)
    offset = int(clock() / 60) * INSPECTED_ADAPTERS
    sampled = {ready[(offset + index) % len(ready)] for index in range(min(INSPECTED_ADAPTERS, len(ready)))}
    failed = [name for name in adapters if adapters[name].state is State.FAILED][:INSPECTED_ADAPTERS]
    for name in [*sorted(sampled), *failed]:
        description = account.find("describe_inference_component", name, InferenceComponentName=name)
        if description is None:
            del found[name]
            continue
        container = description.get("Specification", {}).get("Container", {})
        if name in sampled and container.get("ArtifactUrl") != archive_urls[name]:
            wrong.add(name)
        if name in failed:
            reason = failure_reason(str(description.get("FailureReason", "")))
            found[name] = Component(name, State.FAILED, reason, description)
    return found, frozenset(wrong)
