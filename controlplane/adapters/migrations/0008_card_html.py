from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("adapters", "0007_version_counts")]

    operations = [
        migrations.AddField(
            model_name="adapterversion",
            name="card_html",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="The card, rendered when the version was validated.",
            ),
        ),
    ]
