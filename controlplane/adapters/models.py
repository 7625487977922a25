"""Adapters, their immutable versions, and the aliases that point at versions."""

from __future__ import annotations

from django.db import models

from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant, User
from worker_engine.protocol import AdapterRef, engine_name


class Adapter(models.Model):
    """A tenant's adapter of one base model. Its bare name means `pinned`, else the newest ready version."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=63)
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="adapters")
    pinned = models.ForeignKey(
        "AdapterVersion", models.SET_NULL, null=True, blank=True, related_name="+", help_text="Bare name."
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="adapter_once")]

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.name}"

    @property
    def default_version(self) -> AdapterVersion | None:
        """What the bare name means now; None while no version is ready."""
        ready = [version for version in self.versions.all() if version.status == AdapterVersion.Status.READY]
        pinned = [version for version in ready if version.pk == self.pinned_id]
        return max(pinned or ready, key=lambda version: version.number, default=None)


class AdapterVersion(models.Model):
    """One upload or import. Nothing of it changes once it is ready or refused."""

    class Status(models.TextChoices):
        PENDING = "pending"
        VALIDATING = "validating"
        READY = "ready"
        REFUSED = "refused"

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    reason = models.TextField(blank=True, help_text="Why it was refused.")
    steps = models.JSONField(default=list, help_text="What validation did: name, title, status, detail.")
    source = models.CharField(
        max_length=1000, blank=True, help_text="Imported from this URI; '' for uploads."
    )
    staging = models.CharField(max_length=200, blank=True, help_text="Key in the store until validated.")
    uri = models.CharField(max_length=1000, blank=True, help_text="Folder of the validated files.")
    sha256 = models.CharField(max_length=64, blank=True, help_text="worker_engine.protocol.adapter_digest")
    rank = models.PositiveIntegerField(null=True, blank=True, help_text="Largest LoRA rank.")
    size_bytes = models.BigIntegerField(null=True, blank=True)
    config = models.JSONField(null=True, blank=True, help_text="adapter_config.json")
    attempts = models.PositiveIntegerField(default=0)
    heartbeat_at = models.DateTimeField(null=True, blank=True, help_text="Last sign of the validation.")
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-number",)
        constraints = [models.UniqueConstraint(fields=["adapter", "number"], name="adapter_version_once")]

    def __str__(self) -> str:
        return f"{self.adapter}@v{self.number}"

    @property
    def is_settled(self) -> bool:
        """Ready or refused: nothing will change any more."""
        return self.status in (self.Status.READY, self.Status.REFUSED)

    def ref(self) -> AdapterRef:
        """What a worker needs to serve this version; only of a ready one."""
        tenant, adapter = self.adapter.tenant_id, self.adapter.name
        name = engine_name(tenant=tenant, adapter=adapter, version=self.number, sha256=self.sha256)
        return AdapterRef(name, self.uri, self.sha256, self.rank or 0)


class Alias(models.Model):
    """A name that a tenant moves between versions: `<adapter>@<alias>`."""

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="aliases")
    name = models.CharField(max_length=63)
    version = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="aliases")
    moved_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["adapter", "name"], name="alias_once")]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.name}"
