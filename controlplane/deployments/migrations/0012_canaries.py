from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0011_adapter_rules"),
    ]

    operations = [
        migrations.AddField(
            model_name="copy",
            name="canary",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Rollout that gives this copy and its like an exact share of callers; '' for none.",
                max_length=40,
            ),
        ),
        migrations.AddField(
            model_name="copy",
            name="percent",
            field=models.PositiveSmallIntegerField(db_default=0, default=0, help_text="That share."),
        ),
        migrations.AlterField(
            model_name="deploymentrollout",
            name="strategy",
            field=models.CharField(
                choices=[
                    ("rolling", "some copies at a time"),
                    ("blue_green", "a whole new set, then the switch"),
                    ("canary", "exact shares of callers for a few new copies, then the switch"),
                ],
                max_length=12,
            ),
        ),
    ]
