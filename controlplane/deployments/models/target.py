"""Places where deployments run."""

from __future__ import annotations

import secrets

from django.db import models


def _new_owner() -> str:
    return secrets.token_hex(6)


class Target(models.Model):
    """A place where deployments run. It stores no secrets: processes use their own credentials."""

    class Kind(models.TextChoices):
        SAGEMAKER = "sagemaker"
        LOCAL = "local"
        OPENAI_HTTP = "openai_http"

    name = models.CharField(max_length=40, unique=True)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    region = models.CharField(max_length=30, blank=True)
    endpoint_url = models.CharField(
        max_length=500, blank=True, help_text="sagemaker: instead of AWS's, for all its services."
    )
    role_arn = models.CharField(
        max_length=2048, blank=True, help_text="sagemaker: what endpoints run as (ExecutionRoleArn)."
    )
    assume_role_arn = models.CharField(
        max_length=2048, blank=True, help_text="sagemaker: assumed for every call; '' for the process's own."
    )
    store = models.CharField(
        max_length=500, blank=True, help_text="sagemaker: s3://bucket/prefix for archives that it loads."
    )
    owner = models.CharField(
        max_length=12, default=_new_owner, db_default="", editable=False,
        help_text="sagemaker: the tag, and the store's folder, of what this installation made for it.",
    )  # fmt: skip
    host = models.CharField(max_length=255, blank=True, help_text="local: the machine's host name.")
    address = models.CharField(max_length=255, blank=True, help_text="local: what gateways call it by.")
    urls = models.JSONField(default=list, blank=True, help_text="openai_http: base URLs without /v1.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
