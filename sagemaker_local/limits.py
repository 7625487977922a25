"""Input limits of the runtime's operations, from botocore's service description.

botocore's client checks only required members and minima; the service checks patterns and maxima too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from botocore.session import Session

from sagemaker_local.errors import ValidationError

_CLASSES: Final = {
    r"[\p{Print}]": r"[ -~]",
    r"\p{Print}": r"[ -~]",
    r"\p{ASCII}": r"[\x00-\x7f]",
    r"\z": r"\Z",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds of one input."""

    member: str
    pattern: re.Pattern[str] | None
    low: int
    high: int | None

    def check(self, value: str) -> None:
        """Raise ValidationError in SageMaker's words."""
        reason = ""
        if self.high is not None and len(value) > self.high:
            reason = f"length less than or equal to {self.high}"
        elif len(value) < self.low:
            reason = f"length greater than or equal to {self.low}"
        elif self.pattern is not None and self.pattern.fullmatch(value) is None:
            reason = f"satisfy regular expression pattern: {self.pattern.pattern}"
        if reason:
            raise ValidationError(
                f"1 validation error detected: Value '{value[:100]}' at '{self.member}' failed to satisfy "
                f"constraint: Member must have {reason}"
            )


@dataclass(frozen=True, slots=True)
class Operation:
    """Bounds of an operation's inputs: path, headers by lower-case name, body."""

    endpoint: Limit
    headers: Mapping[str, Limit]
    max_body_bytes: int

    def check(self, endpoint: str, headers: Mapping[str, str], body: bytes) -> None:
        """Raise ValidationError if an input is out of bounds."""
        self.endpoint.check(endpoint)
        for name, limit in self.headers.items():
            if (value := headers.get(name)) is not None:
                limit.check(value)
        if len(body) > self.max_body_bytes:
            raise ValidationError(
                f"1 validation error detected: Value at 'body' failed to satisfy constraint: Member must "
                f"have length less than or equal to {self.max_body_bytes}: the body exceeds this size"
            )


@cache
def operation(name: str) -> Operation:
    """Return the limits of `InvokeEndpoint` or `InvokeEndpointWithResponseStream`."""
    shape = Session().get_service_model("sagemaker-runtime").operation_model(name).input_shape
    headers = {
        member.serialization["name"].lower(): _limit(key, member)
        for key, member in shape.members.items()
        if member.serialization.get("location") == "header"
    }
    body = shape.members["Body"].metadata["max"]
    return Operation(_limit("EndpointName", shape.members["EndpointName"]), headers, int(body))


def _limit(name: str, shape: object) -> Limit:
    metadata = getattr(shape, "metadata", {})
    pattern = metadata.get("pattern")
    for theirs, ours in _CLASSES.items():
        pattern = pattern and pattern.replace(theirs, ours)
    member = name[0].lower() + name[1:]
    return Limit(
        member, re.compile(pattern) if pattern else None, metadata.get("min", 0), metadata.get("max")
    )
