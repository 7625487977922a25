from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="TenantDeletion",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("reason", models.CharField(max_length=500)),
                ("requested_by", models.CharField(max_length=254)),
                ("requested_at", models.DateTimeField()),
                ("purge_after", models.DateTimeField()),
                ("purged_at", models.DateTimeField(null=True)),
            ],
            options={"ordering": ("-requested_at", "tenant")},
        )
    ]
