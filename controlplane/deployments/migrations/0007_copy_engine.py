"""Adds the engine of a copy, by which its capability is known."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0006_removed_copy")]

    operations = [
        migrations.AddField(
            model_name="copy",
            name="engine",
            field=models.CharField(
                blank=True,
                choices=[
                    ("worker", "Worker"),
                    ("vllm", "Vllm"),
                    ("tgi", "Tgi"),
                    ("tensorrt-llm", "Tensorrt Llm"),
                    ("neuron", "Neuron"),
                ],
                db_default="",
                default="",
                help_text="Engine that serves it; '' if it is not known.",
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="copy",
            name="engine_version",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Version of the engine, as the server reports it.",
                max_length=60,
            ),
        ),
        migrations.AddField(
            model_name="copy",
            name="max_rank",
            field=models.PositiveIntegerField(
                blank=True, help_text="Largest LoRA rank that it was started with.", null=True
            ),
        ),
    ]
