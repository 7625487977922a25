"""Who sells and who is billed, and the copies on documents."""

from django.db import migrations, models

_SELLER = models.JSONField(
    blank=True, help_text="Who sells, as it was then; null: nobody was stated.", null=True
)
_BUYER = models.JSONField(
    blank=True, help_text="Who is billed, as it was then; null: nothing was stated.", null=True
)


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0007_prepaid_top_ups"),
    ]

    operations = [
        migrations.CreateModel(
            name="BillingParty",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tenant",
                    models.CharField(blank=True, help_text="'' for the operator, who sells.", max_length=63),
                ),
                ("starts", models.DateField(help_text="First UTC day.")),
                ("legal_name", models.CharField(max_length=200)),
                ("address", models.CharField(help_text="As on letters, line by line.", max_length=500)),
                (
                    "contact",
                    models.CharField(
                        blank=True, help_text="E-mail or telephone for questions.", max_length=200
                    ),
                ),
                ("tax_number", models.CharField(blank=True, help_text="The seller's.", max_length=40)),
                (
                    "registration",
                    models.CharField(
                        blank=True, help_text="The seller's register and number.", max_length=200
                    ),
                ),
                (
                    "payment_text",
                    models.CharField(blank=True, help_text="How the seller is to be paid.", max_length=500),
                ),
                (
                    "reference",
                    models.CharField(
                        blank=True,
                        help_text="What the tenant wants to read: its order number.",
                        max_length=100,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-starts",),
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "starts"), name="billing_party_once_a_day")
                ],
            },
        ),
        migrations.AddField(model_name="invoice", name="seller", field=_SELLER),
        migrations.AddField(model_name="invoice", name="buyer", field=_BUYER),
        migrations.AddField(model_name="creditnote", name="seller", field=_SELLER),
        migrations.AddField(model_name="creditnote", name="buyer", field=_BUYER),
    ]
