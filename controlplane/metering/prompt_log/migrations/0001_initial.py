import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("tenants", "0001_initial"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="PromptLog",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        serialize=False,
                        to="tenants.tenant",
                    ),
                ),
                ("days", models.SmallIntegerField()),
                ("sealed_private_key", models.TextField()),
                ("begun_at", models.DateTimeField(auto_now_add=True)),
                (
                    "begun_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="KeptPrompt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("request_id", models.CharField(max_length=64)),
                ("at", models.DateTimeField()),
                ("encrypted", models.BinaryField()),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "at"], name="kept_prompt_aged")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "request_id"), name="kept_prompt_once")
                ],
            },
        ),
    ]
