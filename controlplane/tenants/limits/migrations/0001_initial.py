import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("tenants", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="ScopeLimits",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("requests_per_minute", models.BigIntegerField(null=True)),
                ("tokens_per_minute", models.BigIntegerField(null=True)),
                ("concurrency", models.BigIntegerField(null=True)),
                ("budget_nano", models.BigIntegerField(null=True)),
                ("budget_period", models.CharField(default="month", max_length=5)),
                ("budget_alert_percent", models.PositiveSmallIntegerField(null=True)),
                ("budget_alerted", models.CharField(editable=False, max_length=10)),
                ("priority", models.PositiveSmallIntegerField(null=True)),
                ("weight", models.FloatField(null=True)),
                ("prepaid_stop", models.BooleanField(db_default=False, default=False)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "api_key",
                    models.OneToOneField(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="tenants.apikey"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
            options={
                "verbose_name_plural": "scope limits",
                "ordering": ("tenant", "api_key"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("api_key", None)),
                        fields=("tenant",),
                        name="limits_once_per_tenant",
                    )
                ],
            },
        )
    ]
