"""A tenant's choice to keep prompts, and what is kept."""

from __future__ import annotations

from django.db import models

from controlplane.tenants.models import Tenant, User

REQUEST_ID = 64


class PromptLog(models.Model):
    """There while a tenant keeps prompts. Gateways seal for `Tenant.prompt_key`; this row can open.

    It is deleted when the tenant opts out, and with it the only key: what was sealed before, also in backups
    and in streams, can be read by nobody.
    """

    tenant = models.OneToOneField(Tenant, models.CASCADE, primary_key=True, related_name="prompt_log")
    days = models.SmallIntegerField(help_text="How long a prompt is kept.")
    sealed_private_key = models.TextField(help_text="X25519: controlplane.platform.sealing.")
    begun_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    begun_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.tenant_id

    @property
    def place(self) -> str:
        """What the private key is sealed for."""
        return f"prompt-log {self.tenant_id}"


class KeptPrompt(models.Model):
    """One request's prompt and answer, as a gateway sealed them (`contracts.prompt_log.PROMPT_FORM`)."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="kept_prompts")
    request_id = models.CharField(max_length=REQUEST_ID)
    at = models.DateTimeField()
    encrypted = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "request_id"], name="kept_prompt_once")]
        indexes = [models.Index(fields=["tenant", "at"], name="kept_prompt_aged")]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.request_id}"
