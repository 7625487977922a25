"""An index that holds all that a tenant's versions are counted by."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("adapters", "0006_model_card"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="adapterversion",
            index=models.Index(
                fields=["adapter", "status", "deleted_at", "size_bytes"], name="version_counted"
            ),
        ),
    ]
