from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("adapters", "0005_lists")]

    operations = [
        migrations.AddField(
            model_name="adapterversion",
            name="card",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="Its README.md: what its makers say of it.",
            ),
        ),
    ]
