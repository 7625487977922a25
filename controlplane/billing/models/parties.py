"""Dated details of the seller and of billed tenants, as documents name them."""

from __future__ import annotations

from django.db import models


class BillingParty(models.Model):
    """Details in force from a UTC day until the same tenant's next record. Documents keep a copy.

    A tenant's own tax number is in its tax treatment.
    """

    tenant = models.CharField(
        max_length=63, blank=True, help_text="Tenant id; '' for the seller (the operator)."
    )
    starts = models.DateField(help_text="First UTC day.")
    legal_name = models.CharField(max_length=200)
    address = models.CharField(max_length=500, help_text="Postal address, one line per line of the address.")
    contact = models.CharField(
        max_length=200, blank=True, help_text="E-mail address or phone number for billing questions."
    )
    tax_number = models.CharField(max_length=40, blank=True, help_text="The seller's.")
    registration = models.CharField(
        max_length=200, blank=True, help_text="Company register and number of the seller."
    )
    payment_text = models.CharField(
        max_length=500, blank=True, help_text="Payment instructions of the seller."
    )
    reference = models.CharField(
        max_length=100,
        blank=True,
        help_text="Purchase order number or another reference that the tenant wants on documents.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-starts",)
        constraints = [models.UniqueConstraint(fields=["tenant", "starts"], name="billing_party_once_a_day")]

    def __str__(self) -> str:
        return f"{self.legal_name}, {self.tenant or 'the seller'} from {self.starts}"


class PartiesNamed(models.Model):
    """Seller and buyer on a document: copies, which change no more than the document does."""

    seller = models.JSONField(
        null=True, blank=True, help_text="Seller details at that time; null if none were set."
    )
    buyer = models.JSONField(
        null=True, blank=True, help_text="Billing details at that time; null if none were set."
    )

    class Meta:
        abstract = True
