from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("limits", "0002_tenant_weight"),
    ]

    operations = [
        migrations.AddField(
            model_name="scopelimits",
            name="prepaid_stop",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Of a tenant: calls stop when what it paid in advance and its credits are used up.",
            ),
        ),
    ]
