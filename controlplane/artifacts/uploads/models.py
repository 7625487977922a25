"""Uploads in progress and their received parts."""

from __future__ import annotations

from django.db import models

from controlplane.tenants.models import Tenant, User


class Upload(models.Model):
    """An uploaded file. `writer` is the token of the request that may append to it during its lease."""

    id = models.CharField(primary_key=True, max_length=32)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="uploads")
    name = models.CharField(max_length=200)
    size = models.BigIntegerField(help_text="Total size in bytes.")
    offset = models.BigIntegerField(default=0, help_text="Number of bytes received.")
    writer = models.CharField(max_length=32, blank=True)
    writer_seen_at = models.DateTimeField(null=True, blank=True)
    registered_at = models.DateTimeField(null=True, blank=True, help_text="Time of the registration.")
    expires_at = models.DateTimeField(db_index=True)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "id")

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.id}"

    @property
    def is_whole(self) -> bool:
        """True once every byte has arrived."""
        return self.offset == self.size

    @property
    def folder(self) -> str:
        """Folder of the upload's parts in the artifact store."""
        return f"uploads/{self.pk}"


class UploadPart(models.Model):
    """A part of an upload from byte `begin` on, under a key in the artifact store."""

    upload = models.ForeignKey(Upload, models.CASCADE, related_name="parts")
    begin = models.BigIntegerField()
    size = models.BigIntegerField()
    key = models.CharField(max_length=120)

    class Meta:
        ordering = ("begin",)
        constraints = [models.UniqueConstraint(fields=["upload", "begin"], name="upload_part_once")]

    def __str__(self) -> str:
        return self.key
