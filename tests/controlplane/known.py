"""Tenants and base models that events may name."""

from __future__ import annotations

from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant


def known(*bases: str, tenants: tuple[str, ...] = ("acme",)) -> None:
    """Create the tenants and base models that do not exist yet."""
    for slug in tenants:
        Tenant.objects.get_or_create(pk=slug, defaults={"name": slug.title()})
    for name in bases:
        values = {"max_model_len": 2048, "modules": {}, "dtype": "bfloat16"}
        BaseModel.objects.get_or_create(name=name, defaults=values)
