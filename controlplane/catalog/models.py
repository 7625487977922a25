"""Base models."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class BaseModel(models.Model):
    """Checkpoint that adapters are trained on, with the metadata that validates them."""

    class Digest(models.TextChoices):
        PENDING = "pending", _("Pending")
        RUNNING = "running", _("Running")
        DONE = "done", _("Done")
        FAILED = "failed", _("Failed")

    name = models.CharField(max_length=63, unique=True)
    served_name = models.CharField(max_length=200, help_text="Model name on the copies.")
    source = models.CharField(
        max_length=500, help_text="Absolute folder, s3://bucket/prefix/ or hf://owner/name@commit."
    )
    sealed_hub_token = models.TextField(
        default="",
        db_default="",
        blank=True,
        help_text="Hugging Face token for a private or gated `source`, sealed.",
    )
    licence = models.CharField(max_length=100, blank=True, help_text="License: an SPDX identifier or a name.")
    architecture = models.CharField(max_length=100)
    max_model_len = models.PositiveIntegerField(
        help_text="Context length in tokens; 0 if the configuration states none."
    )
    dtype = models.CharField(max_length=20)
    quantization = models.CharField(
        max_length=40,
        default="",
        db_default="",
        blank=True,
        help_text="Quantization method of the weights, such as awq or fp8; '' for none.",
    )
    modules = models.JSONField(help_text="Linear module path -> [out features, in features].")
    image_tokens = models.JSONField(
        null=True,
        default=None,
        blank=True,
        help_text="Most tokens of an image, see contracts.image_tokens; null if it is not known.",
    )
    max_lora_rank = models.PositiveIntegerField(default=64)
    dropped_parameters = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text="Parameters that gateways remove from requests before validation.",
    )
    checkpoint_sha256 = models.CharField(max_length=64, blank=True, help_text="digests.checkpoint_digest")
    digest_status = models.CharField(max_length=10, choices=Digest.choices, default=Digest.PENDING)
    digest_reason = models.CharField(max_length=1000, blank=True)
    digest_beat_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def hub_token_place(self) -> str:
        """Context to which the token's encryption is bound."""
        return f"hub-token {self.name}"


class CheckpointFile(models.Model):
    """File of a checkpoint, with the digest of its content."""

    base_model = models.ForeignKey(BaseModel, models.CASCADE, related_name="files")
    name = models.CharField(max_length=255)
    size = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["base_model", "name"], name="checkpoint_file_once")]

    def __str__(self) -> str:
        return f"{self.base_model}/{self.name}"


class Variant(models.Model):
    """Variant of a base model's weights: quantized, for the same adapters, or with one adapter merged in."""

    base_model = models.ForeignKey(BaseModel, models.CASCADE, related_name="variants")
    name = models.CharField(max_length=63)
    dtype = models.CharField(max_length=20)
    quantization = models.CharField(max_length=40, blank=True, help_text="'' for none.")
    source = models.CharField(max_length=500)
    notes = models.TextField(blank=True)
    merged_adapter = models.CharField(
        max_length=160,
        blank=True,
        default="",
        db_default="",
        help_text="Engine name of the adapter that is merged into the weights; '' for none.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["base_model", "name"], name="variant_once")]

    def __str__(self) -> str:
        return f"{self.base_model}:{self.name}"
