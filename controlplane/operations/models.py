"""Deletions of tenants."""

from __future__ import annotations

from django.db import models


class TenantDeletion(models.Model):
    """A scheduled or completed deletion of a tenant. The row stays, so that its id is never reused."""

    tenant = models.CharField(primary_key=True, max_length=63)
    reason = models.CharField(max_length=500, blank=True)
    requested_by = models.CharField(max_length=254)
    requested_at = models.DateTimeField()
    purge_after = models.DateTimeField(help_text="Until this time the deletion can be canceled.")
    purged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-requested_at", "tenant")

    def __str__(self) -> str:
        return self.tenant
