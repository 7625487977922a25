import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="BaseModel",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63, unique=True)),
                ("served_name", models.CharField(help_text="Model name on the copies.", max_length=200)),
                (
                    "source",
                    models.CharField(
                        help_text="Absolute folder, s3://bucket/prefix/ or hf://owner/name@commit.",
                        max_length=500,
                    ),
                ),
                (
                    "licence",
                    models.CharField(
                        blank=True, help_text="License: an SPDX identifier or a name.", max_length=100
                    ),
                ),
                ("architecture", models.CharField(max_length=100)),
                ("max_model_len", models.PositiveIntegerField(help_text="Context length in tokens.")),
                ("dtype", models.CharField(max_length=20)),
                ("modules", models.JSONField(help_text="Linear module path -> [out features, in features].")),
                ("max_lora_rank", models.PositiveIntegerField(default=64)),
                (
                    "dropped_parameters",
                    models.JSONField(
                        blank=True,
                        db_default=[],
                        default=list,
                        help_text="Parameters that gateways remove from requests before validation.",
                    ),
                ),
                (
                    "checkpoint_sha256",
                    models.CharField(blank=True, help_text="digests.checkpoint_digest", max_length=64),
                ),
                (
                    "digest_status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("digest_reason", models.CharField(blank=True, max_length=1000)),
                ("digest_beat_at", models.DateTimeField(blank=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="CheckpointFile",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                ("size", models.BigIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="files",
                        to="catalog.basemodel",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("base_model", "name"), name="checkpoint_file_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Variant",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63)),
                ("dtype", models.CharField(max_length=20)),
                ("quantization", models.CharField(blank=True, help_text="'' for none.", max_length=40)),
                ("source", models.CharField(max_length=500)),
                ("notes", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="variants",
                        to="catalog.basemodel",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [models.UniqueConstraint(fields=("base_model", "name"), name="variant_once")],
            },
        ),
    ]
