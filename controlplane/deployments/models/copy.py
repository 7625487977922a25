"""Serving copies of base models."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from contracts.server_credentials import ServerCredentials
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models.credentials import credentials_of
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
        ROUTES = "routes"

    class Container(models.TextChoices):
        """Form of a SageMaker container's requests; see `SageMakerTarget.container`."""

        LMI = "lmi"
        VLLM = "vllm"
        TGI = "tgi"
        TRITON = "triton"
        PYTORCH = "pytorch"

    class Engine(models.TextChoices):
        """Names of engines; see `contracts.capabilities.engines`."""

        WORKER = "worker"
        VLLM = "vllm"
        TGI = "tgi"
        TENSORRT_LLM = "tensorrt-llm"
        NEURON = "neuron"
        TRANSFORMERS = "transformers"

    id = models.CharField(primary_key=True, max_length=40)
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="copies")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    url = models.CharField(
        max_length=500,
        blank=True,
        help_text="Base URL without /v1; sagemaker: empty for the region's endpoint.",
    )
    loads_adapters = models.BooleanField(
        default=False, help_text="openai_http: gateways may make vLLM load missing adapters."
    )
    region = models.CharField(max_length=30, blank=True)
    endpoint = models.CharField(max_length=63, blank=True)
    component = models.CharField(
        max_length=63, blank=True, help_text="Inference component of the base model, if any."
    )
    adapter_naming = models.CharField(
        max_length=20, choices=AdapterNaming.choices, default=AdapterNaming.COMPONENTS
    )
    api = models.CharField(max_length=20, choices=Api.choices, default=Api.INVOCATIONS)
    container = models.CharField(max_length=20, choices=Container.choices, default="lmi", db_default="lmi")
    loaded = models.JSONField(
        null=True,
        blank=True,
        help_text="Engine names of the adapters in every container; null: containers refuse unknown ones.",
    )
    deployment = models.ForeignKey(
        Deployment,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="copies",
        help_text="Owner of the copy.",
    )
    merged_adapter = models.CharField(
        max_length=160,
        blank=True,
        default="",
        db_default="",
        help_text="Engine name of the adapter merged into the weights, the only one served; '' for none.",
    )
    canary = models.CharField(
        max_length=40,
        blank=True,
        default="",
        db_default="",
        help_text="Rollout that gives these copies an exact share of callers; '' for none.",
    )
    percent = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="Percent of callers in the canary."
    )
    engine = models.CharField(
        max_length=20,
        choices=Engine.choices,
        blank=True,
        default="",
        db_default="",
        help_text="Engine that serves it; '' if it is not known.",
    )
    engine_version = models.CharField(
        max_length=60,
        blank=True,
        default="",
        db_default="",
        help_text="Version of the engine, as the server reports it.",
    )
    max_rank = models.PositiveIntegerField(
        null=True, blank=True, help_text="Largest LoRA rank that it was started with."
    )
    sealed_credentials = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="openai_http: the server's bearer token and headers, sealed.",
    )
    silent_since = models.DateTimeField(
        null=True, blank=True, help_text="Time of the first poll without a response."
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

    @property
    def credentials_place(self) -> str:
        """Context to which the encryption of the credentials is bound."""
        return f"copy-credentials {self.pk}"

    @property
    def credentials(self) -> ServerCredentials:
        """The server's token and headers. Raises UnsealError."""
        return credentials_of(self.sealed_credentials, place=self.credentials_place)

    @property
    def request_headers(self) -> dict[str, str]:
        """Headers that authorize a call of the copy: its own credentials, else the installation's."""
        if self.kind == self.Kind.WORKER:
            return ServerCredentials().request_headers(settings.GRAFTWORK.fleet_token)
        return self.credentials.request_headers(settings.GRAFTWORK.openai_http_key)


class RemovedCopy(models.Model):
    """A deployment's copy that was removed lately: metrics still count its requests. Has the copy's id."""

    id = models.CharField(primary_key=True, max_length=40)
    deployment = models.ForeignKey(Deployment, models.CASCADE, related_name="removed_copies")
    endpoint = models.CharField(max_length=63, blank=True)
    component = models.CharField(max_length=63, blank=True)
    adapter_naming = models.CharField(max_length=20)
    removed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.id
