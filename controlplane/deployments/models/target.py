"""Places where deployments run."""

from __future__ import annotations

import secrets

from django.db import models

from contracts.server_credentials import ServerCredentials
from controlplane.deployments.models.credentials import credentials_of


def _new_owner() -> str:
    return secrets.token_hex(6)


class Target(models.Model):
    """A place where deployments run.

    Processes use their own credentials of AWS. Only the token and headers of running servers are stored.
    """

    class Kind(models.TextChoices):
        SAGEMAKER = "sagemaker"
        LOCAL = "local"
        OPENAI_HTTP = "openai_http"

    name = models.CharField(max_length=40, unique=True)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    region = models.CharField(max_length=30, blank=True)
    endpoint_url = models.CharField(
        max_length=500, blank=True, help_text="sagemaker: endpoint URL that replaces AWS's for all services."
    )
    role_arn = models.CharField(
        max_length=2048, blank=True, help_text="sagemaker: execution role of endpoints (ExecutionRoleArn)."
    )
    assume_role_arn = models.CharField(
        max_length=2048, blank=True, help_text="sagemaker: role for all calls; '' for the process's own."
    )
    store = models.CharField(
        max_length=500, blank=True, help_text="sagemaker: s3://bucket/prefix for adapter archives."
    )
    metrics_namespace = models.CharField(
        max_length=255,
        blank=True,
        default="",
        db_default="",
        help_text="sagemaker: CloudWatch namespace for metrics of adapters; '' for no export.",
    )
    openai_path = models.BooleanField(
        default=False,
        db_default=False,
        help_text="sagemaker: gateways send chats to the endpoints' OpenAI path, where the image has it.",
    )
    owner = models.CharField(
        max_length=12,
        default=_new_owner,
        db_default="",
        editable=False,
        help_text="sagemaker: tag and store folder of resources that this installation created.",
    )
    host = models.CharField(max_length=255, blank=True, help_text="local: host name of the machine.")
    address = models.CharField(max_length=255, blank=True, help_text="local: address that gateways use.")
    urls = models.JSONField(default=list, blank=True, help_text="openai_http: base URLs without /v1.")
    sealed_credentials = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="openai_http: the servers' bearer token and headers, sealed.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def credentials_place(self) -> str:
        """Context to which the encryption of the credentials is bound."""
        return f"target-credentials {self.name}"

    @property
    def credentials(self) -> ServerCredentials:
        """The servers' token and headers. Raises UnsealError."""
        return credentials_of(self.sealed_credentials, place=self.credentials_place)
