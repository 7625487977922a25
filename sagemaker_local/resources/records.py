"""Records of the control plane's resources: plain values, so that a file can hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """The record of any resource.

    Attributes:
        spec: the input of the operation that created or last updated it, without its tags.
        status: SageMaker's status.
        failure: FailureReason; "" for none.
    """

    name: str
    arn: str
    spec: dict[str, Any]
    created: float
    modified: float
    status: str = "InService"
    failure: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class EndpointRecord(Record):
    """An endpoint, with copies of its configuration and models, which may be deleted meanwhile.

    Attributes:
        config: the endpoint configuration's input.
        models: inputs of its variants' models, by name.
        desired: weight and count by variant.
    """

    config: dict[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    desired: dict[str, dict[str, float]] = field(default_factory=dict)
    pending: str = ""

    @property
    def variants(self) -> list[dict[str, Any]]:
        return list(self.config["ProductionVariants"])


@dataclass(slots=True)
class ComponentRecord(Record):
    """An inference component; `base` is "" unless it is an adapter."""

    endpoint: str = ""
    variant: str = ""
    base: str = ""
    desired: int = 0
    current: int = 0
    deployment: dict[str, Any] | None = None


@dataclass(slots=True)
class JobRecord(Record):
    """A job; `source` is the location of an optimization job's weights, kept if its model is deleted."""

    source: str = ""
    started: float | None = None
    ended: float | None = None
    output: dict[str, Any] = field(default_factory=dict)
