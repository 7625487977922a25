from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0010_key_last_used")]

    operations = [
        migrations.AlterField(
            model_name="apikey",
            name="scopes",
            field=models.JSONField(help_text="List of `inference`, `manage`, `usage`, `usage:write`."),
        ),
    ]
