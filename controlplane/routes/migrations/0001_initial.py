from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="RouteCounter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("version", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="RouteDelta",
            fields=[
                ("version", models.BigIntegerField(primary_key=True, serialize=False)),
                ("path", models.CharField(max_length=200)),
                ("entry", models.JSONField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True, db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name="RouteEntryRow",
            fields=[
                ("path", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("entry", models.JSONField()),
            ],
        ),
    ]
