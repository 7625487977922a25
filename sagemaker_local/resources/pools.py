"""Instance types of a production variant: one, or pools that are tried by priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sagemaker_local.aws_errors import ValidationException

BY_TYPE: Final = "ByType"
"""Key of a base's specification with one for each instance type, if Specifications was given."""


def pool_types(variant: Mapping[str, Any]) -> list[str]:
    """Return the variant's instance types, the first one to be tried first."""
    if (pools := variant.get("InstancePools")) is None:
        return [variant["InstanceType"]]
    return [pool["InstanceType"] for pool in sorted(pools, key=lambda pool: pool["Priority"])]


def demand_pools(variant: Mapping[str, Any]) -> None:
    """Raise ValidationException unless the variant has either a type or distinct pools."""
    if ("InstanceType" in variant) == ("InstancePools" in variant):
        raise ValidationException("Specify either InstanceType or InstancePools, and not both.")
    types = pool_types(variant)
    if repeated := [kind for kind in types if types.count(kind) > 1]:
        raise ValidationException(f"InstancePools names {repeated[0]} more than once.")
    if any("ModelNameOverride" in pool for pool in variant.get("InstancePools", ())):
        raise ValidationException("The local SageMaker serves pools without a ModelNameOverride.")


def specification_for(spec: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a base's specification for an instance type."""
    return dict(spec.get(BY_TYPE, {}).get(kind, spec))
