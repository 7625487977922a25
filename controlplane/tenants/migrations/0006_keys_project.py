"""A key's project is a row, always."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_keys_projects")]

    operations = [
        migrations.AlterField(
            "apikey",
            "project",
            models.ForeignKey(
                on_delete=django.db.models.deletion.RESTRICT, related_name="api_keys", to="tenants.project"
            ),
        ),
        # A default makes the column come back whole when this is undone.
        migrations.AlterField("apikey", "project_slug", models.CharField(default="default", max_length=63)),
        migrations.RemoveField("apikey", "project_slug"),
    ]
