"""Whether the bare name means a version once it is ready; changes of what the bare name means."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("adapters", "0008_card_html"),
    ]

    operations = [
        migrations.AddField(
            model_name="adapterversion",
            name="makes_default",
            field=models.BooleanField(
                db_default=False, default=False, help_text="The bare name means it once it is ready."
            ),
        ),
        migrations.AlterField(
            model_name="aliaschange",
            name="alias",
            field=models.CharField(blank=True, help_text="'' for the bare name.", max_length=63),
        ),
    ]
