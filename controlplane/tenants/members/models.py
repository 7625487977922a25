"""Invitations of people to a tenant. Members are in `tenants.Membership`."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role


class Invitation(models.Model):
    """An invitation of an e-mail address, valid once until it expires. Its link is signed over `nonce`."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="invitations")
    email = models.EmailField()
    role = models.CharField(max_length=10, choices=Role.choices)
    nonce = models.CharField(max_length=32, help_text="Resending invalidates the previous link.")
    invited_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    attempted_at = models.DateTimeField(null=True, blank=True, help_text="Last attempt to send it.")
    sent_at = models.DateTimeField(null=True, blank=True)
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "email"],
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="invitation_open_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.email} to {self.tenant_id}"

    @property
    def is_open(self) -> bool:
        """True while the invitation can be accepted."""
        return self.accepted_at is None and self.revoked_at is None and self.expires_at > timezone.now()
