from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                (
                    "digest",
                    models.CharField(
                        help_text="HMAC of caller and key.", max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("fingerprint", models.CharField(help_text="HMAC of what was asked.", max_length=64)),
                ("claim", models.UUIDField(help_text="Who works on it; a later claim takes the work away.")),
                ("claimed_until", models.DateTimeField()),
                (
                    "sealed",
                    models.BinaryField(
                        help_text="The answer, encrypted; null while it is worked on.", null=True
                    ),
                ),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
        ),
    ]
