from django.db import migrations, models

from controlplane.billing.reports.list_prices import add_list_prices


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="InstancePrice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("instance_type", models.CharField(max_length=40)),
                ("region", models.CharField(max_length=30)),
                ("effective_from", models.DateField()),
                ("currency", models.CharField(default="USD", max_length=3)),
                ("hour_nano", models.BigIntegerField(null=True)),
                ("source", models.CharField(max_length=300)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("percent_below", models.DecimalField(decimal_places=2, max_digits=5, null=True)),
                ("plan", models.CharField(db_default="on_demand", default="on_demand", max_length=20)),
                ("reference_type", models.CharField(db_default="", default="", max_length=40)),
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
    ]
