"""Copies of base models on compute."""

from __future__ import annotations

from django.db import models

from controlplane.catalog.models import BaseModel


class Copy(models.Model):
    """One server that serves a base model; its id stands as `endpoint` in usage events."""

    class Kind(models.TextChoices):
        WORKER = "worker"
        OPENAI_HTTP = "openai_http"

    id = models.CharField(primary_key=True, max_length=40)
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="copies")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    url = models.CharField(max_length=500, help_text="Base URL without /v1.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at", "id")
        constraints = [models.UniqueConstraint(fields=["base_model", "url"], name="copy_once")]

    def __str__(self) -> str:
        return self.id
