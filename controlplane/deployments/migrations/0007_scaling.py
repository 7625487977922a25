import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0006_silent_since"),
    ]

    operations = [
        migrations.CreateModel(
            name="Scaling",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "policy",
                    models.JSONField(blank=True, help_text="ScalingPolicy.to_json(); null: off.", null=True),
                ),
                ("copies", models.PositiveSmallIntegerField(default=0)),
                ("state", models.JSONField(blank=True, default=dict)),
                ("seen", models.JSONField(blank=True, default=dict)),
                ("evaluated_at", models.DateTimeField(blank=True, null=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scaling",
                        to="deployments.deployment",
                    ),
                ),
            ],
            options={
                "ordering": ("deployment_id",),
            },
        ),
    ]
