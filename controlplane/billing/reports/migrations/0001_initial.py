import django.core.validators
from django.db import migrations, models

from controlplane.billing.reports.list_prices import add_list_prices


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
                ("effective_from", models.DateField(help_text="UTC day.")),
                ("currency", models.CharField(default="USD", max_length=3)),
                (
                    "hour_nano",
                    models.BigIntegerField(
                        help_text="Nano-units per hour.",
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                ("source", models.CharField(help_text="Where the price is published.", max_length=300)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("instance_type", "region", "effective_from"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("instance_type", "region", "effective_from"), name="instance_price_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("hour_nano__gte", 0)), name="instance_price_not_negative"
                    ),
                ],
            },
        ),
        migrations.RunPython(add_list_prices, migrations.RunPython.noop),
    ]
