"""A tenant's opt-in to store prompts, and the stored prompts."""

from __future__ import annotations

from django.db import models

from controlplane.tenants.models import Tenant, User

REQUEST_ID = 64


class PromptLog(models.Model):
    """Exists while a tenant stores prompts. Gateways seal with `Tenant.prompt_key`; this row's key opens.

    Opting out deletes it, and with it the only private key. Prompts that were sealed before, also those in
    backups and streams, can then never be read.
    """

    tenant = models.OneToOneField(Tenant, models.CASCADE, primary_key=True, related_name="prompt_log")
    days = models.SmallIntegerField(help_text="Retention of a prompt.")
    sealed_private_key = models.TextField(help_text="X25519: controlplane.platform.sealing.")
    begun_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    begun_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.tenant_id

    @property
    def place(self) -> str:
        """Context that the private key is sealed with."""
        return f"prompt-log {self.tenant_id}"


class KeptPrompt(models.Model):
    """One request's prompt and answer, as sealed by a gateway (`contracts.prompt_log.PROMPT_FORM`)."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="kept_prompts")
    request_id = models.CharField(max_length=REQUEST_ID)
    at = models.DateTimeField()
    encrypted = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "request_id"], name="kept_prompt_once")]
        indexes = [models.Index(fields=["tenant", "at"], name="kept_prompt_aged")]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.request_id}"
