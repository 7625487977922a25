"""Serving copies of base models."""

from __future__ import annotations

from django.db import models

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models.deployment import Deployment


class Copy(models.Model):
    """One server that serves a base model. Usage events carry its id as `endpoint`."""

    class Kind(models.TextChoices):
        WORKER = "worker"
        OPENAI_HTTP = "openai_http"
        SAGEMAKER = "sagemaker"

    class AdapterNaming(models.TextChoices):
        """How requests name the adapter to a SageMaker copy; see `SageMakerTarget.adapters`."""

        COMPONENTS = "components"
        REFERENCE = "reference"
        NAME = "name"

    class Api(models.TextChoices):
        """Interface of a SageMaker endpoint that gateways call."""

        INVOCATIONS = "invocations"
        OPENAI = "openai"

    id = models.CharField(primary_key=True, max_length=40)
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="copies")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    url = models.CharField(
        max_length=500, blank=True, help_text="Base URL without /v1; of SageMaker empty for the region's own."
    )
    loads_adapters = models.BooleanField(
        default=False, help_text="openai_http: vLLM may be told to load an adapter that it does not know."
    )
    region = models.CharField(max_length=30, blank=True)
    endpoint = models.CharField(max_length=63, blank=True)
    component = models.CharField(
        max_length=63, blank=True, help_text="Inference component of the base model, if there is one."
    )
    adapter_naming = models.CharField(
        max_length=20, choices=AdapterNaming.choices, default=AdapterNaming.COMPONENTS
    )
    api = models.CharField(max_length=20, choices=Api.choices, default=Api.INVOCATIONS)
    deployment = models.ForeignKey(
        Deployment, models.SET_NULL, null=True, blank=True, related_name="copies", help_text="Whose it is."
    )
    canary = models.CharField(
        max_length=40, blank=True, default="", db_default="",
        help_text="Rollout that gives this copy and its like an exact share of callers; '' for none.",
    )  # fmt: skip
    percent = models.PositiveSmallIntegerField(default=0, db_default=0, help_text="That share.")
    silent_since = models.DateTimeField(
        null=True, blank=True, help_text="Its deployment's looks have had no answer in time since."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["base_model", "url", "region", "endpoint", "component"], name="copy_once"
            )
        ]

    def __str__(self) -> str:
        return self.id
