import django.core.validators
from django.db import migrations, models

from controlplane.billing.reports.list_prices import add_published_rates


class Migration(migrations.Migration):
    dependencies = [("reports", "0001_initial")]

    operations = [
        migrations.AlterModelOptions(
            name="instanceprice", options={"ordering": ("instance_type", "region", "plan", "effective_from")}
        ),
        migrations.RemoveConstraint(model_name="instanceprice", name="instance_price_once"),
        migrations.AddField(
            model_name="instanceprice",
            name="percent_below",
            field=models.DecimalField(
                blank=True,
                decimal_places=2,
                help_text="Percent by which the price is below that of `reference_type`.",
                max_digits=5,
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="instanceprice",
            name="plan",
            field=models.CharField(
                choices=[("on_demand", "On demand"), ("savings_plan_1y", "1-year SageMaker Savings Plan")],
                db_default="on_demand",
                default="on_demand",
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="instanceprice",
            name="reference_type",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="Instance type compared with.", max_length=40
            ),
        ),
        migrations.AlterField(
            model_name="instanceprice",
            name="hour_nano",
            field=models.BigIntegerField(
                blank=True,
                help_text="Nano-units per hour; null if only the difference to `reference_type` is published.",
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AddConstraint(
            model_name="instanceprice",
            constraint=models.UniqueConstraint(
                fields=("instance_type", "region", "plan", "effective_from"),
                name="instance_price_once_by_plan",
            ),
        ),
        migrations.RunPython(add_published_rates, migrations.RunPython.noop),
    ]
