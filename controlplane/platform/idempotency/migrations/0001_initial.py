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
                ("fingerprint", models.CharField(help_text="HMAC of the request.", max_length=64)),
                ("claim", models.UUIDField(help_text="Token of the claim; a later claim replaces it.")),
                ("claimed_until", models.DateTimeField()),
                (
                    "sealed",
                    models.BinaryField(
                        help_text="Encrypted response; null while the request is in progress.", null=True
                    ),
                ),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
        )
    ]
