"""What of a deployment is in the account: read by a handful of calls, whatever the number of adapters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controlplane.deployments.provisioners.base import Desired, PlacedAdapter, State
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.autoscaling import NOTHING_REGISTERED, Registered
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
LOOKED_INTO: Final = 10
"""Adapters of a look whose archive is compared; the next look takes the next ones."""


@dataclass(frozen=True, slots=True)
class Component:
    """A component, or the endpoint, as Describe tells it; `told` is the whole answer."""

    name: str
    state: State
    reason: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)


ABSENT: Final = Component("", State.ABSENT)


@dataclass(frozen=True, slots=True)
class Seen:
    """Attributes:
    adapters: by the component's name.
    archives: keys of the deployment's adapters and of its preloaded archives.
    foreign: names such as ours, of resources that are not: told apart, so that a removal passes them by.
    wrong_archives: adapter components that hold another archive than theirs.
    alarms: states of ours, where a rollout may have made some.
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
    autoscaling: Registered = NOTHING_REGISTERED
    alarms: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_in_force(self) -> str:
        return str(self.endpoint.told.get("EndpointConfigName", ""))

    @property
    def model_in_force(self) -> str:
        return str(self.base.told.get("Specification", {}).get("ModelName", ""))

    @property
    def copies(self) -> tuple[int, int]:
        """(desired, running) copies of the base, as SageMaker has them."""
        told = self.base.told.get("RuntimeConfig", {})
        return int(told.get("DesiredCopyCount", 0)), int(told.get("CurrentCopyCount", 0))

    @property
    def instances(self) -> int | None:
        """Machines under the endpoint now; None while it does not tell."""
        told = self.endpoint.told.get("ProductionVariants", ())
        counts = [item["CurrentInstanceCount"] for item in told if "CurrentInstanceCount" in item]
        return sum(counts) if counts else None


def look(
    account: Account,
    store: Store,
    names: Names,
    desired: Desired,
    *,
    checkpoint_folder: str,
    archive_urls: Mapping[str, str],
    clock: Callable[[], float] = time.time,
) -> Seen:
    """
    Args:
        archive_urls: by adapter component, what it is to hold.

    Raises:
        ProvisioningError: AWS refuses.
    """
    foreign: set[str] = set()
    endpoint = _described(account, names, "endpoint", names.endpoint, "EndpointStatus", foreign)
    base = _described(account, names, "inference_component", names.base, "InferenceComponentStatus", foreign)
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
            name: Component(name, _STATES[item["InferenceComponentStatus"]], told=item)
            for name, item in found
            if names.is_adapter(name)
        }
    adapters, wrong = _looked_into(account, adapters, archive_urls, clock)
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
    return Seen(
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


def placed(component: Component) -> PlacedAdapter:
    """An adapter's component in words that all targets share."""
    return PlacedAdapter(component.name, component.state, component.reason)


def _described(
    account: Account, names: Names, kind: str, name: str, status: str, foreign: set[str]
) -> Component:
    """None where it is somebody else's, whose name then joins `foreign`."""
    argument = "EndpointName" if kind == "endpoint" else "InferenceComponentName"
    told = account.find(f"describe_{kind}", name, **{argument: name})
    if told is None:
        return ABSENT
    arn = str(told["EndpointArn" if kind == "endpoint" else "InferenceComponentArn"])
    if not names.is_ours(account.tags(arn)):
        foreign.add(name)
        return ABSENT
    state = _STATES[told[status]]
    reason = failure_reason(str(told.get("FailureReason", ""))) if state is State.FAILED else ""
    return Component(name, state, reason, told)


def _ours(account: Account, names: Names, arns: Mapping[str, str]) -> frozenset[str]:
    """Of resources by name those that carry our tags."""
    return frozenset(name for name, arn in arns.items() if names.is_ours(account.tags(arn)))


def _looked_into(
    account: Account,
    adapters: Mapping[str, Component],
    archive_urls: Mapping[str, str],
    clock: Callable[[], float],
) -> tuple[dict[str, Component], frozenset[str]]:
    """Why those failed that failed, and which of a few others hold another archive than they should."""
    found, wrong = dict(adapters), set()
    ready = sorted(name for name in adapters if adapters[name].state is State.READY and name in archive_urls)
    turn = int(clock() / 60) * LOOKED_INTO
    chosen = {ready[(turn + index) % len(ready)] for index in range(min(LOOKED_INTO, len(ready)))}
    failed = [name for name in adapters if adapters[name].state is State.FAILED][:LOOKED_INTO]
    for name in [*sorted(chosen), *failed]:
        told = account.find("describe_inference_component", name, InferenceComponentName=name)
        if told is None:
            del found[name]
            continue
        container = told.get("Specification", {}).get("Container", {})
        if name in chosen and container.get("ArtifactUrl") != archive_urls[name]:
            wrong.add(name)
        if name in failed:
            reason = failure_reason(str(told.get("FailureReason", "")))
            found[name] = Component(name, State.FAILED, reason, told)
    return found, frozenset(wrong)
