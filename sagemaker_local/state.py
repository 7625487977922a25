"""Routes invocations to containers; and endpoints that are configured by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

from sagemaker_local.errors import ValidationError

ACCOUNT_ID: Final = "000000000000"
NEEDS_COMPONENT: Final = (
    "Inference Component Name header is required for endpoints to which you plan to deploy inference "
    "components. Please include Inference Component Name header or consider using SageMaker models."
)
NO_CAPACITY: Final = (
    "Inference Component has no capacity to process this request. ApplicationAutoScaling may be in-progress "
    "(if configured) or try to increase the capacity by invoking UpdateInferenceComponentRuntimeConfig API."
)


_ALL_TRAFFIC: Final = "AllTraffic"
"""The variant of a hand-configured endpoint, named as by the SDK."""


def unknown_variant(variant: str | None, endpoint: str) -> ValidationError:
    """Return the error for a TargetVariant that the endpoint lacks."""
    return ValidationError(f"Variant {variant} of endpoint {endpoint} of account {ACCOUNT_ID} not found.")


class ConfigError(ValueError):
    """The configuration is malformed; the text names the place and the accepted values."""


@dataclass(frozen=True, slots=True)
class Container:
    """A worker that serves `/invocations`; `token` is the fleet token it demands, "" for none."""

    url: str
    token: str = ""


class Load:
    """Running invocations of a container: `with load` counts one."""

    def __init__(self) -> None:
        self.outstanding = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.outstanding += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.outstanding -= 1
        if self.outstanding == 0:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until there is none."""
        await self._idle.wait()


@dataclass(frozen=True, slots=True)
class Target:
    """An invocation's target: a container, and the adapter that SageMaker names to it."""

    container: Container
    adapter: str = ""
    variant: str = _ALL_TRAFFIC
    load: Load = field(default_factory=Load, compare=False)

    @classmethod
    def for_url(cls, url: str, load: Load, adapter: str = "", variant: str = _ALL_TRAFFIC) -> Self:
        return cls(Container(url), adapter, variant, load)


@dataclass(frozen=True, slots=True)
class Component:
    """An inference component: a base with a container, or an adapter of a base.

    Attributes:
        base: the base component of an adapter, else "".
        adapter: the adapter's name in the container.
        copies: number of a base's copies; 0 answers "no capacity".
    """

    container: Container | None = None
    base: str = ""
    adapter: str = ""
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint with one container, or with inference components."""

    container: Container | None = None
    components: Mapping[str, Component] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Parse an endpoint. Raises ConfigError if it is malformed."""
        try:
            container = value.get("container")
            components = {name: _component(name, item) for name, item in value.get("components", {}).items()}
            unknown = set(value) - {"container", "components"}
        except (AttributeError, TypeError) as error:
            raise ConfigError(f"an endpoint is an object of container or components: {error}") from error
        if unknown or (container is None) == (not components):
            raise ConfigError("an endpoint has either container or components, and nothing else")
        for name, component in components.items():
            base = components.get(component.base)
            if component.base and (base is None or base.base):
                raise ConfigError(f"component {name!r}: {component.base!r} is no base component here")
        return cls(None if container is None else _container(container), components)

    def target(self, name: str, component: str | None) -> Target:
        """Return an invocation's target. Raises ValidationError as SageMaker does."""
        if self.container is not None:
            if component:
                raise ValidationError(f"Endpoint {name} hosts no inference components.")
            return Target(self.container)
        if not component:
            raise ValidationError(NEEDS_COMPONENT)
        item = self.components.get(component)
        if item is None:
            raise ValidationError(f"Inference Component {component} of account {ACCOUNT_ID} not found.")
        base = self.components[item.base] if item.base else item
        if base.container is None or base.copies == 0:
            raise ValidationError(NO_CAPACITY)
        return Target(base.container, item.adapter)


class Resolver(Protocol):
    """Resolves an invocation's target."""

    def resolve(self, endpoint: str, component: str | None, variant: str | None) -> Target | None:
        """Return the target; None for an unknown endpoint. Raises ValidationError as SageMaker does."""


class State:
    """Hand-configured endpoints, which take precedence over the control plane's."""

    def __init__(self, endpoints: Mapping[str, Endpoint], others: Resolver) -> None:
        self._endpoints, self._others = dict(endpoints), others

    def put(self, name: str, endpoint: Endpoint) -> None:
        self._endpoints[name] = endpoint

    def delete(self, name: str) -> None:
        self._endpoints.pop(name, None)

    def target(self, endpoint: str, component: str | None, variant: str | None) -> Target:
        """Return an invocation's target. Raises ValidationError."""
        if (put := self._endpoints.get(endpoint)) is not None:
            if variant not in (None, _ALL_TRAFFIC):
                raise unknown_variant(variant, endpoint)
            return put.target(endpoint, component)
        target = self._others.resolve(endpoint, component, variant)
        if target is None:
            raise ValidationError(f"Endpoint {endpoint} of account {ACCOUNT_ID} not found.")
        return target


def _component(name: str, value: Mapping[str, Any]) -> Component:
    if unknown := set(value) - {"container", "base", "adapter", "copies"}:
        raise ConfigError(f"component {name!r} does not know {sorted(unknown)}")
    container, base = value.get("container"), value.get("base", "")
    if (container is None) == (not base):
        raise ConfigError(f"component {name!r} has either a container or a base")
    return Component(
        None if container is None else _container(container),
        base,
        value.get("adapter", name) if base else "",
        value.get("copies", 1),
    )


def _container(value: Mapping[str, Any]) -> Container:
    return Container(value["url"].rstrip("/"), value.get("token", ""))
