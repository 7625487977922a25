import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0010_scaling_lease"),
    ]

    operations = [
        migrations.CreateModel(
            name="AdapterRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("engine_name", models.CharField(max_length=200)),
                ("ref", models.JSONField()),
                (
                    "copies",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="That it is pinned on; 0: on none."
                    ),
                ),
                ("on", models.JSONField(blank=True, default=list)),
                ("away", models.JSONField(blank=True, default=list)),
                ("leaving", models.JSONField(blank=True, default=dict)),
                ("ready", models.JSONField(blank=True, default=list)),
                ("generation", models.PositiveIntegerField(default=1)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waits for a copy"),
                            ("loading", "Loading"),
                            ("ready", "Ready"),
                            ("moving", "Moving"),
                            ("leaving", "Leaving"),
                            ("failed", "Failed"),
                        ],
                        default="loading",
                        max_length=10,
                    ),
                ),
                ("reason", models.TextField(blank=True, help_text="What it waits for, or what to do.")),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="adapter_rules",
                        to="deployments.deployment",
                    ),
                ),
            ],
            options={
                "ordering": ("engine_name",),
                "constraints": [
                    models.UniqueConstraint(fields=("deployment", "engine_name"), name="adapter_rule_once")
                ],
            },
        ),
    ]
