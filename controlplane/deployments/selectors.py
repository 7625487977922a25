"""Reads of copies."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.errors import NotFoundError


def copy_list(*, base_model: BaseModel | None = None) -> QuerySet[Copy]:
    """All copies, or one base model's, oldest first."""
    copies = Copy.objects.select_related("base_model")
    return copies.filter(base_model=base_model) if base_model else copies


def copy_get(*, copy_id: str) -> Copy:
    """Raises NotFoundError."""
    copy = Copy.objects.select_related("base_model").filter(pk=copy_id).first()
    if copy is None:
        raise NotFoundError(f"there is no copy {copy_id!r}")
    return copy
