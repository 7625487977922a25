"""Injected faults: refusals, damage in the middle of a stream, copies that do not start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from sagemaker_local.aws_errors import AccessDenied, ApiError, Injected, ThrottlingException
from sagemaker_local.aws_errors import InternalFailure as InternalFailureOfApi
from sagemaker_local.aws_errors import ServiceUnavailable as ServiceUnavailableOfApi
from sagemaker_local.errors import (
    AccessRefused,
    InternalDependency,
    InternalFailure,
    ModelNotReady,
    RuntimeRefusal,
    ServiceUnavailable,
    Throttled,
)

BEFORE: Final[Mapping[str, Callable[[], RuntimeRefusal]]] = {
    "throttle": lambda: Throttled("Rate exceeded"),
    "not_ready": lambda: ModelNotReady("Model is not ready for inference yet."),
    "internal_failure": lambda: InternalFailure("An internal failure occurred."),
    "dependency": lambda: InternalDependency("An internal dependency failed."),
    "unavailable": lambda: ServiceUnavailable("The service is unavailable."),
    "expired_token": lambda: AccessRefused(
        "ExpiredTokenException", "The security token included in the request is expired"
    ),
}
"""Fault kinds before an answer."""
WITHIN: Final = frozenset({"drop", "corrupt", "model_stream_error", "internal_stream_failure", "delay"})
"""Fault kinds after `after` parts: the connection is cut, a frame's byte is changed, an exception frame ends
the stream, or nothing comes for `seconds`."""


START: Final = "start_failure"
"""A copy does not start; its component's FailureReason is `message`."""
REFUSAL: Final = "refusal"
"""An operation's error: `code` and `message`, with HTTP `status`."""
_OF_OPERATIONS: Final[Mapping[str, Callable[[], ApiError]]] = {
    "throttle": lambda: ThrottlingException("Rate exceeded"),
    "internal_failure": lambda: InternalFailureOfApi("An internal failure occurred."),
    "unavailable": lambda: ServiceUnavailableOfApi("The service is unavailable."),
    "expired_token": lambda: AccessDenied(
        "The security token included in the request is expired", "ExpiredTokenException"
    ),
}


@dataclass(slots=True)
class Fault:
    """A fault for the next `count` matching calls.

    Attributes:
        endpoint, component: matching invocations, "" for any; for `start_failure` the component's copies.
        operation: a control plane operation, "*" for any, or the signing name of a service that moto answers
            ("s3", "sts", "monitoring"); then the fault does not match invocations.
        code, message, status: of a `refusal`.
    """

    kind: str
    endpoint: str = ""
    component: str = ""
    operation: str = ""
    count: int = 1
    after: int = 0
    seconds: float = 0.0
    code: str = ""
    message: str = ""
    status: int = 400

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Parse a fault. Raises ValueError naming the invalid part."""
        try:
            fault = cls(**value)
        except TypeError as error:
            names = ", ".join(item.name for item in fields(cls))
            raise ValueError(f"a fault is {names}: {error}") from error
        known = [*_OF_OPERATIONS, REFUSAL] if fault.operation else [*BEFORE, *sorted(WITHIN), START]
        if fault.kind not in known:
            raise ValueError(f"kind must be one of {', '.join(known)}")
        if fault.kind == REFUSAL and not (fault.code and 400 <= fault.status <= 599):
            raise ValueError("a refusal has a code, and a status from 400 to 599")
        return fault


class Faults:
    """The pending faults."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def set(self, faults: list[Fault]) -> None:
        self._faults = faults

    def take(self, endpoint: str, component: str, *, streams: bool) -> Fault | None:
        """Return the fault for this invocation, if any; a fault within a stream waits for a stream."""
        return self._first(
            lambda fault: (
                not fault.operation
                and fault.endpoint in ("", endpoint)
                and fault.component in ("", component)
                and (fault.kind in BEFORE or (streams and fault.kind in WITHIN))
            )
        )

    def meet(self, *operations: str) -> None:
        """Raise the pending ApiError for a call, if there is one, and count it as used.

        Args:
            operations: what a fault for the call may name: "*" and the operation of a control plane call,
                or the signing name of a service that moto answers.
        """
        if (fault := self._first(lambda item: item.operation in operations)) is not None:
            if fault.kind == REFUSAL:
                raise Injected(fault.message, fault.code, fault.status)
            raise _OF_OPERATIONS[fault.kind]()

    def start(self, component: str) -> str:
        """Return the reason why a component's next copy must not start, or ""."""
        fault = self._first(lambda item: item.kind == START and item.component in ("", component))
        if fault is None:
            return ""
        return fault.message or "The container did not pass the ping health check (injected fault)."

    def _first(self, fits: Callable[[Fault], bool]) -> Fault | None:
        for fault in self._faults:
            if fault.count > 0 and fits(fault):
                fault.count -= 1
                return fault
        return None
