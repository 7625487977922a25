from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("adapters", "0003_lifecycle")]

    operations = [
        migrations.AddField(
            model_name="adapterversion",
            name="lost_attempts",
            field=models.PositiveIntegerField(
                db_default=0, default=0, help_text="Attempts whose process died: killed, or out of memory."
            ),
        ),
        migrations.AddField(
            model_name="adapterversion",
            name="retry_at",
            field=models.DateTimeField(blank=True, help_text="Not enqueued again before that.", null=True),
        ),
    ]
