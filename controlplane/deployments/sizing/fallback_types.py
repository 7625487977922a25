"""Further instance types of a deployment: their checks, and what a copy needs on each."""

from __future__ import annotations

import copy
import re
from typing import Any, Final

from controlplane.deployments.models import Deployment
from controlplane.deployments.sizing.deployment import requirements_of
from controlplane.errors import InvalidInputError

MOST_FALLBACKS: Final = 4
"""SageMaker takes five pools; `instance_type` is the first one."""
_TYPE: Final = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")
_FIELD: Final = "fallback_instance_types"


def fallback_types_check(deployment: Deployment) -> None:
    """Check the list of further types. Raises InvalidInputError."""
    types = deployment.fallback_instance_types
    if not isinstance(types, list) or len(types) > MOST_FALLBACKS:
        raise _wrong(f"must have at most {MOST_FALLBACKS} entries, such as ml.g6.12xlarge")
    for kind in types:
        if not isinstance(kind, str) or _TYPE.fullmatch(kind) is None:
            raise _wrong(f"must have instance types such as ml.g6.12xlarge, got {kind!r}")
        if [deployment.instance_type, *types].count(kind) > 1:
            raise _wrong(f"repeats {kind}: name each type once, and none that instance_type has")


def requirements_by_type(deployment: Deployment, accelerators: int) -> dict[str, dict[str, Any]]:
    """Return what a copy needs on each further type; empty without one.

    Args:
        accelerators: of a copy on `instance_type`. The model's environment states them, so all types need
            as many.

    Raises:
        InvalidInputError: a copy does not fit on a type, or takes another number of accelerators there.
    """
    found = {}
    for kind in deployment.fallback_instance_types:
        other = copy.copy(deployment)
        other.instance_type = kind
        try:
            needs = requirements_of(other)
        except InvalidInputError as error:
            raise _wrong(f"{kind}: {error}") from error
        if needs.accelerators != accelerators:
            raise _wrong(
                f"{kind}: a copy takes {needs.accelerators} accelerators there and {accelerators} on "
                f"{deployment.instance_type}: set options.tensor_parallel, or choose types on which it takes "
                "as many"
            )
        found[kind] = {
            "cpus": needs.cpus,
            "memory_mb": needs.memory_mb,
            "copies_per_instance": needs.copies_per_instance,
        }
    return found


def _wrong(text: str) -> InvalidInputError:
    return InvalidInputError(f"{_FIELD} {text}", field=_FIELD)
