"""A tenant that keeps prompts has a key that gateways seal them for."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0013_tenant_suspended"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="prompt_key",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="X25519, base64: gateways seal its prompts for it while it keeps them.",
                max_length=44,
            ),
        ),
    ]
