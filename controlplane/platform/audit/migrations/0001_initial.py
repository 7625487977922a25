from django.db import migrations, models

from controlplane.platform.audit import append_only


def protect(apps, schema_editor):
    append_only.install(schema_editor.connection)


def unprotect(apps, schema_editor):
    append_only.remove(schema_editor.connection)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AuditChain",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("number", models.BigIntegerField(default=0)),
                ("sha256", models.CharField(max_length=64)),
                ("pruned_through", models.BigIntegerField(default=0)),
                ("pruned_sha256", models.CharField(max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name="AuditRecord",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("number", models.BigIntegerField()),
                ("at", models.DateTimeField(db_index=True)),
                ("actor_kind", models.CharField(max_length=10)),
                ("actor_id", models.CharField(max_length=100)),
                ("actor_name", models.CharField(max_length=254)),
                ("action", models.CharField(max_length=60)),
                ("target_type", models.CharField(max_length=60)),
                ("target_id", models.CharField(max_length=100)),
                ("target_name", models.CharField(max_length=200)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                ("address", models.CharField(max_length=45)),
                ("user_agent", models.CharField(max_length=300)),
                ("request_id", models.CharField(max_length=64)),
                ("previous_sha256", models.CharField(max_length=64)),
                ("sha256", models.CharField(max_length=64)),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "number"), name="audit_number_once")
                ],
            },
        ),
        migrations.RunPython(protect, unprotect),
    ]
