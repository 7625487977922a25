"""`manage.py republish_models`: gives gateways the routes of all models as this release writes them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from controlplane.adapters.models import Adapter
from controlplane.adapters.services import adapter_locked, adapter_publish
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.publishing import base_publish
from controlplane.errors import NotFoundError


class Command(BaseCommand):
    """Publishes each model in a transaction of its own, so that other changes wait for one model at most."""

    help = "Publish every base model and adapter again, so that routes have the fields of this release."

    def handle(self, *args: Any, **options: Any) -> None:
        bases = list(BaseModel.objects.all())
        for base_model in bases:
            with transaction.atomic():
                base_publish(base_model)
        adapters = list(Adapter.objects.filter(deleted_at=None))
        for adapter in adapters:
            # An adapter that is deleted meanwhile has no route.
            with suppress(NotFoundError), transaction.atomic():
                adapter_publish(adapter=adapter_locked(adapter))
        self.stdout.write(f"{len(bases)} base models and {len(adapters)} adapters were published")
