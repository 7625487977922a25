"""One state of a deployment's copies: the fields that say what a copy is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from controlplane.catalog.models import BaseModel, Variant
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.rollouts.models import ROLLED


def state_values(deployment: Deployment) -> dict[str, Any]:
    """Of a deployment as its row is now."""
    return {field: getattr(deployment, field) for field in ROLLED}


def copies_state(base_model: BaseModel, values: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """The same in `Desired`'s words.

    Args:
        strict: False: of a deployment that is being removed the checkpoint does not matter any more.

    Raises:
        ProvisioningError: the variant has been taken out of the catalogue.
    """
    found = {field: value for field, value in values.items() if field != "variant"}
    found["urls"] = tuple(values.get("urls", ()))
    return found | _checkpoint(base_model, values.get("variant", ""), strict=strict)


def _checkpoint(base_model: BaseModel, name: str, *, strict: bool) -> dict[str, str]:
    own = {"checkpoint": base_model.source, "checkpoint_digest": base_model.checkpoint_sha256}
    variant = Variant.objects.filter(base_model=base_model, name=name).first()
    if not name or (variant is None and not strict):
        return own
    if variant is None:
        raise ProvisioningError(
            f"{base_model.name} has no variant {name} any more: record it again, or choose another",
            code="no_variant",
        )
    # A variant's row is never changed: its source stands for its content.
    told = f"variant {variant.pk} {variant.source}"
    digest = hashlib.sha256(told.encode()).hexdigest()
    return {"checkpoint": variant.source, "checkpoint_digest": digest}
