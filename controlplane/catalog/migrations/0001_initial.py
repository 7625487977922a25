import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="BaseModel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, unique=True)),
                ("served_name", models.CharField(max_length=200)),
                ("source", models.CharField(max_length=500)),
                ("licence", models.CharField(max_length=100)),
                ("architecture", models.CharField(max_length=100)),
                ("max_model_len", models.PositiveIntegerField()),
                ("dtype", models.CharField(max_length=20)),
                ("modules", models.JSONField()),
                ("max_lora_rank", models.PositiveIntegerField(default=64)),
                ("dropped_parameters", models.JSONField(db_default=[], default=list)),
                ("checkpoint_sha256", models.CharField(max_length=64)),
                ("digest_status", models.CharField(default="pending", max_length=10)),
                ("digest_reason", models.CharField(max_length=1000)),
                ("digest_beat_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="CheckpointFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=255)),
                ("size", models.BigIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="catalog.basemodel"),
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
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63)),
                ("dtype", models.CharField(max_length=20)),
                ("quantization", models.CharField(max_length=40)),
                ("source", models.CharField(max_length=500)),
                ("notes", models.TextField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="catalog.basemodel"),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [models.UniqueConstraint(fields=("base_model", "name"), name="variant_once")],
            },
        ),
    ]
