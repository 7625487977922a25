"""Input limits of the runtime's operations, from botocore's service description.

botocore's client checks only required members and minima; the service checks patterns and maxima too.
"""

from __future__ import annotations

from collections.abc import Mapping

from sagemaker_local.aws import shapes
from sagemaker_local.aws.validation import violations
from sagemaker_local.errors import ValidationError


def check(operation: str, endpoint: str, headers: Mapping[str, str], body: bytes) -> None:
    """Check the inputs of `InvokeEndpoint` or `InvokeEndpointWithResponseStream`.

    Raises:
        ValidationError: an input is out of bounds; the text is SageMaker's.
    """
    members = shapes.service("sagemaker-runtime").operation_model(operation).input_shape.members
    given = {"EndpointName": endpoint}
    for name, shape in members.items():
        if shape.serialization.get("location") == "header":
            value = headers.get(shape.serialization["name"])
            given |= {} if value is None else {name: value}
    for name, value in given.items():
        for problem in violations(members[name], value, name[0].lower() + name[1:]):
            raise ValidationError(f"1 validation error detected: {problem}")
    most = int(members["Body"].metadata["max"])
    if len(body) > most:
        raise ValidationError(
            "1 validation error detected: Value at 'body' failed to satisfy constraint: Member must "
            f"have length less than or equal to {most}: the body exceeds this size"
        )
