import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("tenants", "0001_initial"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="Upload",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                ("size", models.BigIntegerField()),
                ("offset", models.BigIntegerField(default=0)),
                ("writer", models.CharField(max_length=32)),
                ("writer_seen_at", models.DateTimeField(null=True)),
                ("registered_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField(db_index=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
            options={"ordering": ("-created_at", "id")},
        ),
        migrations.CreateModel(
            name="UploadPart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("begin", models.BigIntegerField()),
                ("size", models.BigIntegerField()),
                ("key", models.CharField(max_length=120)),
                (
                    "upload",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="uploads.upload"),
                ),
            ],
            options={
                "ordering": ("begin",),
                "constraints": [models.UniqueConstraint(fields=("upload", "begin"), name="upload_part_once")],
            },
        ),
    ]
