import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("tenants", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="ScopeLimits",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "requests_per_minute",
                    models.BigIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(9000000000000000),
                        ],
                    ),
                ),
                (
                    "tokens_per_minute",
                    models.BigIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(9000000000000000),
                        ],
                    ),
                ),
                (
                    "concurrency",
                    models.BigIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(9000000000000000),
                        ],
                    ),
                ),
                (
                    "budget_nano",
                    models.BigIntegerField(
                        blank=True,
                        help_text="Nano-units (1e-9) of the default price book's currency per period. Further requests are refused.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(9000000000000000),
                        ],
                    ),
                ),
                (
                    "budget_period",
                    models.CharField(
                        choices=[("day", "Day"), ("month", "Month")], default="month", max_length=5
                    ),
                ),
                (
                    "budget_alert_percent",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="Share of the budget from which responses carry a warning.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                    ),
                ),
                (
                    "budget_alerted",
                    models.CharField(
                        blank=True, editable=False, help_text="Period (UTC) of the last alert.", max_length=10
                    ),
                ),
                (
                    "priority",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="0 (highest) to 9. Order of requests that wait for capacity.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(9)],
                    ),
                ),
                (
                    "weight",
                    models.FloatField(
                        blank=True,
                        help_text="For a tenant: its share of a busy worker relative to other tenants. Defaults to 1.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.01),
                            django.core.validators.MaxValueValidator(100),
                        ],
                    ),
                ),
                (
                    "prepaid_stop",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="For a tenant: requests are refused once its prepaid balance and credits are used up.",
                    ),
                ),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "api_key",
                    models.OneToOneField(
                        blank=True,
                        help_text="Null for the tenant's own limits.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="limits",
                        to="tenants.apikey",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="limits",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "scope limits",
                "ordering": ("tenant", "api_key"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("api_key", None)),
                        fields=("tenant",),
                        name="limits_once_per_tenant",
                    )
                ],
            },
        )
    ]
