"""Adds the hosting mode endpoint."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0001_initial")]

    operations = [
        migrations.AlterField(model_name="deployment", name="hosting", field=models.CharField(max_length=20))
    ]
