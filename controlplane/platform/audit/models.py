"""The audit log: who changed what, when, from where. Triggers keep it append-only."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class AuditRecord(models.Model):
    """One change. It holds names, not keys: a record outlives the objects that it names.

    `number` and the digests chain a tenant's records: to alter, drop or insert a record breaks a digest
    (see `chain.record_digest`).
    """

    class Kind(models.TextChoices):
        """Kind of actor."""

        USER = "user", _("User")
        KEY = "key", _("Key")
        STAFF = "staff", _("Staff")
        SYSTEM = "system", _("System")
        ANONYMOUS = "anonymous", _("Anonymous")

    tenant = models.CharField(
        max_length=63, blank=True, help_text="Tenant of the log; '' for the platform's own."
    )
    number = models.BigIntegerField(help_text="Consecutive within a tenant, from 1.")
    at = models.DateTimeField(db_index=True)
    actor_kind = models.CharField(max_length=10, choices=Kind.choices)
    actor_id = models.CharField(max_length=100, blank=True)
    actor_name = models.CharField(max_length=254, blank=True)
    action = models.CharField(max_length=60, help_text="`<thing>.<verb>`")
    target_type = models.CharField(max_length=60)
    target_id = models.CharField(max_length=100)
    target_name = models.CharField(max_length=200)
    before = models.JSONField(
        null=True, blank=True, help_text="Changed values before the change; null for a new object."
    )
    after = models.JSONField(
        null=True, blank=True, help_text="Changed values after the change; null for a deleted object."
    )
    address = models.CharField(max_length=45, blank=True, help_text="Client address, past trusted proxies.")
    user_agent = models.CharField(max_length=300, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    previous_sha256 = models.CharField(max_length=64, help_text="Digest of the tenant's previous record.")
    sha256 = models.CharField(max_length=64)

    class Meta:
        ordering = ("-id",)
        constraints = [models.UniqueConstraint(fields=["tenant", "number"], name="audit_number_once")]

    def __str__(self) -> str:
        return f"{self.tenant or 'platform'} {self.number}: {self.action} {self.target_name}"


class AuditChain(models.Model):
    """The end of a tenant's chain, and its start after pruning. Its lock orders the tenant's records."""

    tenant = models.CharField(max_length=63, primary_key=True)
    number = models.BigIntegerField(default=0, help_text="Value of the newest record.")
    sha256 = models.CharField(max_length=64, help_text="Value of the newest record.")
    pruned_through = models.BigIntegerField(default=0, help_text="Number of the last removed record.")
    pruned_sha256 = models.CharField(max_length=64, help_text="Predecessor digest of the first kept record.")

    def __str__(self) -> str:
        return f"{self.tenant or 'platform'}: {self.number}"
