from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                ("digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("fingerprint", models.CharField(max_length=64)),
                ("claim", models.UUIDField()),
                ("claimed_until", models.DateTimeField()),
                ("sealed", models.BinaryField(null=True)),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
        )
    ]
