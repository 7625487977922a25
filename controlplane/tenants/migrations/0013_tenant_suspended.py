"""A tenant may be suspended: its calls are refused, everything of it stays."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0012_key_ends"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="suspended_at",
            field=models.DateTimeField(
                blank=True, help_text="Gateways refuse its calls since then.", null=True
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="suspended_reason",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="Its members read it.", max_length=500
            ),
        ),
    ]
