from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="SignUp",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("email", models.EmailField(max_length=254, unique=True)),
                (
                    "nonce",
                    models.CharField(
                        help_text="Requesting a new link invalidates the previous one.", max_length=32
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                (
                    "attempted_at",
                    models.DateTimeField(blank=True, help_text="Last attempt to send it.", null=True),
                ),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"ordering": ("-created_at", "-pk")},
        )
    ]
