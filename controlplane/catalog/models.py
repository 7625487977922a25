"""Base models."""

from __future__ import annotations

from django.db import models


class BaseModel(models.Model):
    """A checkpoint that adapters are trained on, with what is needed to validate them without it."""

    name = models.CharField(max_length=63, unique=True)
    served_name = models.CharField(max_length=200, help_text="What the copies call it.")
    source = models.CharField(max_length=500, help_text="Folder of the checkpoint in Hugging Face form.")
    architecture = models.CharField(max_length=100)
    max_model_len = models.PositiveIntegerField(help_text="Tokens of context.")
    dtype = models.CharField(max_length=20)
    modules = models.JSONField(help_text="Linear module path -> [out features, in features].")
    max_lora_rank = models.PositiveIntegerField(default=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
