from django.db import migrations, models

import controlplane.deployments.models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0004_retry_at"),
    ]

    operations = [
        migrations.AddField(
            model_name="target",
            name="owner",
            field=models.CharField(
                db_default="",
                default=controlplane.deployments.models._new_owner,
                editable=False,
                help_text=(
                    "sagemaker: the tag, and the store's folder, of what this installation made for it."
                ),
                max_length=12,
            ),
        ),
    ]
