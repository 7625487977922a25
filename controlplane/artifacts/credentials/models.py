"""Credentials of tenants for imports from a hub or an S3 API."""

from __future__ import annotations

from django.db import models

from controlplane.tenants.models import Tenant, User


class SourceCredential(models.Model):
    """A token or access key. The secret is stored encrypted and never shown again."""

    class Kind(models.TextChoices):
        HUGGINGFACE = "huggingface", "Hugging Face"
        S3 = "s3", "S3"

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="source_credentials")
    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=12, choices=Kind.choices)
    endpoint = models.CharField(max_length=500, blank=True, help_text="S3 endpoint; '' for AWS.")
    region = models.CharField(max_length=40, blank=True)
    access_key_id = models.CharField(max_length=128, blank=True)
    sealed_secret = models.TextField(help_text="Token or secret key, sealed.")
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="source_credential_once")]

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.name}"

    @property
    def place(self) -> str:
        """Context to which the secret's encryption is bound."""
        return f"source-credential {self.tenant_id}/{self.name}"
