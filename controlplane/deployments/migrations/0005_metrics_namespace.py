"""Adds the CloudWatch namespace of a target."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0004_container_form")]

    operations = [
        migrations.AddField(
            model_name="target",
            name="metrics_namespace",
            field=models.CharField(db_default="", default="", max_length=255),
        )
    ]
