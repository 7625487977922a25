"""Says what a context length of 0 means."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0004_base_quantization")]

    operations = [
        migrations.AlterField(
            model_name="basemodel",
            name="max_model_len",
            field=models.PositiveIntegerField(
                help_text="Context length in tokens; 0 if the configuration states none."
            ),
        )
    ]
