from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="TenantDeletion",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("requested_by", models.CharField(max_length=254)),
                ("requested_at", models.DateTimeField()),
                (
                    "purge_after",
                    models.DateTimeField(help_text="Until this time the deletion can be canceled."),
                ),
                ("purged_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"ordering": ("-requested_at", "tenant")},
        )
    ]
