"""State of a deployment's copies: the fields that define a copy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from controlplane.catalog.models import BaseModel, Variant
from controlplane.deployments.models import ROLLED, Deployment
from controlplane.deployments.provisioners.base import ProvisioningError


def state_values(deployment: Deployment) -> dict[str, Any]:
    """Return the state in the deployment's row."""
    return {field: getattr(deployment, field) for field in ROLLED}


def copies_state(deployment: Deployment, values: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Return the state as fields of `Desired`.

    Args:
        strict: False accepts any variant, for a deployment that is being removed.

    Raises:
        ProvisioningError: the variant is no longer in the catalogue, or has another adapter merged in than
            the deployment serves.
    """
    found = {field: value for field, value in values.items() if field != "variant"}
    found["urls"] = tuple(values.get("urls", ()))
    name, merged = values.get("variant", ""), deployment.merged_adapter
    return found | _checkpoint(deployment.base_model, name, merged, strict=strict)


def _checkpoint(base_model: BaseModel, name: str, merged_adapter: str, *, strict: bool) -> dict[str, Any]:
    own = {
        "checkpoint": base_model.source,
        "checkpoint_digest": base_model.checkpoint_sha256,
        "checkpoint_needs_token": bool(base_model.sealed_hub_token),
    }
    variant = Variant.objects.filter(base_model=base_model, name=name).first()
    if not name or (variant is None and not strict):
        return own
    if variant is None:
        raise ProvisioningError(
            f"{base_model.name} no longer has variant {name}: register it again, or choose another one",
            code="no_variant",
        )
    if strict and variant.merged_adapter != merged_adapter:
        raise ProvisioningError(
            f"variant {name} was replaced since this deployment was created: its merged adapter is "
            f"{variant.merged_adapter or 'none'}, not {merged_adapter or 'none'}; choose another variant, or "
            "create a deployment for this one",
            code="other_variant",
        )
    # A variant's row never changes, so its source identifies its content.
    identity = f"variant {variant.pk} {variant.source}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return {"checkpoint": variant.source, "checkpoint_digest": digest}
