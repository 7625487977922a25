from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_catalogue")]

    operations = [
        migrations.AddField(
            model_name="basemodel",
            name="dropped_parameters",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                help_text="Parameters that gateways remove from requests before they check them.",
            ),
        ),
    ]
