from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0009_rollouts"),
    ]

    operations = [
        migrations.AddField(
            model_name="scaling",
            name="lease_until",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
