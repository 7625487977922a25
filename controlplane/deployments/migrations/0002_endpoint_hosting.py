"""Adds the hosting mode endpoint."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="deployment",
            name="hosting",
            field=models.CharField(
                choices=[
                    ("components", "one inference component per adapter"),
                    ("preloaded", "one archive for all adapters"),
                    ("fused", "merged into the weights"),
                    ("on_demand", "loaded on demand"),
                    ("api", "loaded through the server's API"),
                    ("endpoint", "an endpoint without inference components"),
                ],
                max_length=20,
            ),
        )
    ]
