import django.core.validators
from django.db import migrations, models

from controlplane.billing.reports.list_prices import add_list_prices, add_published_rates


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="InstancePrice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("instance_type", models.CharField(max_length=40)),
                ("region", models.CharField(max_length=30)),
                (
                    "plan",
                    models.CharField(
                        choices=[
                            ("on_demand", "On demand"),
                            ("savings_plan_1y", "1-year SageMaker Savings Plan"),
                        ],
                        default="on_demand",
                        max_length=20,
                    ),
                ),
                ("effective_from", models.DateField(help_text="UTC day.")),
                ("currency", models.CharField(default="USD", max_length=3)),
                (
                    "hour_nano",
                    models.BigIntegerField(
                        blank=True,
                        help_text="Nano-units per hour; null if only the difference to `reference_type` is published.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "reference_type",
                    models.CharField(
                        blank=True, default="", help_text="Instance type compared with.", max_length=40
                    ),
                ),
                (
                    "percent_below",
                    models.DecimalField(
                        blank=True,
                        decimal_places=2,
                        help_text="Percent by which the price is below that of `reference_type`.",
                        max_digits=5,
                        null=True,
                    ),
                ),
                ("source", models.CharField(help_text="Where the price is published.", max_length=300)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("instance_type", "region", "plan", "effective_from"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("instance_type", "region", "plan", "effective_from"),
                        name="instance_price_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("hour_nano__gte", 0)), name="instance_price_not_negative"
                    ),
                ],
            },
        ),
        migrations.RunPython(add_list_prices, migrations.RunPython.noop),
        migrations.RunPython(add_published_rates, migrations.RunPython.noop),
    ]
