"""Dated details of the seller and of billed tenants, as documents name them."""

from __future__ import annotations

from django.db import models


class BillingParty(models.Model):
    """Details in force from a UTC day until the same tenant's next record. Documents keep a copy.

    A tenant's own tax number is in its tax treatment.
    """

    tenant = models.CharField(max_length=63, blank=True, help_text="'' for the operator, who sells.")
    starts = models.DateField(help_text="First UTC day.")
    legal_name = models.CharField(max_length=200)
    address = models.CharField(max_length=500, help_text="As on letters, line by line.")
    contact = models.CharField(max_length=200, blank=True, help_text="E-mail or telephone for questions.")
    tax_number = models.CharField(max_length=40, blank=True, help_text="The seller's.")
    registration = models.CharField(max_length=200, blank=True, help_text="The seller's register and number.")
    payment_text = models.CharField(max_length=500, blank=True, help_text="How the seller is to be paid.")
    reference = models.CharField(
        max_length=100, blank=True, help_text="What the tenant wants to read: its order number."
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
        null=True, blank=True, help_text="Who sells, as it was then; null: nobody was stated."
    )
    buyer = models.JSONField(
        null=True, blank=True, help_text="Who is billed, as it was then; null: nothing was stated."
    )

    class Meta:
        abstract = True
