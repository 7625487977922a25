import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0007_scaling"),
    ]

    operations = [
        migrations.CreateModel(
            name="ScaleUp",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("event", models.CharField(max_length=64)),
                ("copies_before", models.PositiveSmallIntegerField()),
                ("copies_after", models.PositiveSmallIntegerField()),
                ("cause", models.TextField(blank=True)),
                ("began_at", models.DateTimeField()),
                ("decided_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("phases", models.JSONField(blank=True, default=dict)),
                (
                    "outcome",
                    models.CharField(
                        blank=True, choices=[("done", "Done"), ("overtaken", "Overtaken")], max_length=10
                    ),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scale_ups",
                        to="deployments.deployment",
                    ),
                ),
            ],
            options={
                "ordering": ("-decided_at", "-pk"),
                "constraints": [
                    models.UniqueConstraint(fields=("deployment", "event"), name="scale_up_once")
                ],
            },
        ),
    ]
