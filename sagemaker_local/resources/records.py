"""Records of the control plane's resources: plain values, so that a file can hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_local.aws_errors import ApiError, ResourceInUse, ResourceNotFound, ValidationException


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource.

    Attributes:
        noun: in the names of operations and members, as in CreateModel and ModelArn.
        what: in error messages.
        path: in ARNs.
        is_job: errors for a missing or an existing resource are those of jobs and AI workloads.
        is_ai: answers name a stopped or deleted resource.
    """

    noun: str
    what: str
    path: str
    is_job: bool = False
    is_ai: bool = False

    @property
    def title(self) -> str:
        """`what` at the beginning of a sentence."""
        return self.what[0].upper() + self.what[1:]

    def missing(self, name: str, arn: str) -> ApiError:
        if self.is_job:
            return ResourceNotFound(f"Could not find {self.what} {name}.")
        return ValidationException(f'Could not find {self.what} "{arn}".')

    def existing(self, name: str, arn: str) -> ApiError:
        if self.is_job:
            return ResourceInUse(f"{self.title} {name} already exists.")
        return ValidationException(f'Cannot create already existing {self.what} "{arn}".')


MODEL: Final = Kind("Model", "model", "model")
ENDPOINT_CONFIG: Final = Kind("EndpointConfig", "endpoint configuration", "endpoint-config")
ENDPOINT: Final = Kind("Endpoint", "endpoint", "endpoint")
COMPONENT: Final = Kind("InferenceComponent", "inference component", "inference-component")
OPTIMIZATION_JOB: Final = Kind("OptimizationJob", "optimization job", "optimization-job", is_job=True)
WORKLOAD_CONFIG: Final = Kind("AIWorkloadConfig", "AI workload config", "ai-workload-config", True, True)
BENCHMARK: Final = Kind("AIBenchmarkJob", "AIBenchmarkJob", "ai-benchmark-job", True, True)
RECOMMENDATION: Final = Kind(
    "AIRecommendationJob", "AIRecommendationJob", "ai-recommendation-job", True, True
)


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
