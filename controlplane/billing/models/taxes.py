"""Dated tax treatments of tenants' invoices."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class TaxKind(models.TextChoices):
    """Taxed, or the reason why no tax is added."""

    TAXED = "taxed", _("Taxed")
    REVERSE_CHARGE = "reverse_charge", _("Reverse Charge")
    """The customer owes the tax: none is added, and the document says so."""
    EXEMPT = "exempt", _("Exempt")
    """No tax is owed: the document says why."""


class TaxTreatment(models.Model):
    """In force from a UTC day until the tenant's next treatment. Invoices keep a copy."""

    tenant = models.CharField(max_length=63)
    starts = models.DateField(help_text="First UTC day.")
    kind = models.CharField(max_length=15, choices=TaxKind.choices)
    label = models.CharField(
        max_length=30, help_text="Name of the tax on documents, such as VAT, GST or Sales tax."
    )
    rate_percent = models.DecimalField(
        max_digits=7,
        decimal_places=4,
        default=0,
        help_text="Exact decimal such as 8.875; 0 unless kind is taxed.",
    )
    tax_number = models.CharField(
        max_length=40, blank=True, help_text="The tenant's tax number, as printed on documents."
    )
    text = models.CharField(max_length=300, blank=True, help_text="Legal text to print on the document.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-starts",)
        constraints = [
            models.UniqueConstraint(fields=["tenant", "starts"], name="tax_treatment_once_a_day"),
            models.CheckConstraint(
                condition=models.Q(rate_percent__gte=0, rate_percent__lte=100)
                & (models.Q(kind="taxed") | models.Q(rate_percent=0)),
                name="tax_treatment_rate",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} from {self.starts}: {self.kind} {self.label} {self.rate_percent}"
