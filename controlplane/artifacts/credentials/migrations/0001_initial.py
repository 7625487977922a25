import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("tenants", "0001_initial"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="SourceCredential",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63)),
                (
                    "kind",
                    models.CharField(choices=[("huggingface", "Hugging Face"), ("s3", "S3")], max_length=12),
                ),
                (
                    "endpoint",
                    models.CharField(blank=True, help_text="S3 endpoint; '' for AWS.", max_length=500),
                ),
                ("region", models.CharField(blank=True, max_length=40)),
                ("access_key_id", models.CharField(blank=True, max_length=128)),
                ("sealed_secret", models.TextField(help_text="Token or secret key, sealed.")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="source_credentials",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "name"), name="source_credential_once")
                ],
            },
        )
    ]
