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


def copies_state(base_model: BaseModel, values: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Return the state as fields of `Desired`.

    Args:
        strict: False accepts a missing variant, for a deployment that is being removed.

    Raises:
        ProvisioningError: the variant is no longer in the catalogue.
    """
    found = {field: value for field, value in values.items() if field != "variant"}
    found["urls"] = tuple(values.get("urls", ()))
    return found | _checkpoint(base_model, values.get("variant", ""), strict=strict)


def _checkpoint(base_model: BaseModel, name: str, *, strict: bool) -> dict[str, Any]:
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
    # A variant's row never changes, so its source identifies its content.
    identity = f"variant {variant.pk} {variant.source}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return {"checkpoint": variant.source, "checkpoint_digest": digest}
