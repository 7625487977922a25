"""Whose a dead letter is: who may meet it, and with whom it goes."""

from django.db import migrations, models

from controlplane.platform.row_security.policies import RowPolicy, owned_by


class Migration(migrations.Migration):
    dependencies = [("metering", "0007_started_index"), ("row_security", "0001_policies")]

    operations = [
        migrations.AddField(
            model_name="deadusageevent",
            name="tenant",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="That it names; '' if unreadable.",
                max_length=200,
            ),
        ),
        RowPolicy("metering_deadusageevent", owned_by("tenant")),
    ]
