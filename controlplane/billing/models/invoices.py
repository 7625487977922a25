"""Invoices: drafts that follow the ledger, and finalized ones, which triggers protect from changes."""

from __future__ import annotations

from decimal import Decimal

from django.db import models

from controlplane.billing.models.documents import StoredPdf
from controlplane.billing.models.parties import PartiesNamed
from controlplane.billing.models.taxes import TaxKind


class Invoice(PartiesNamed):
    """A tenant's invoice for one UTC month. Amounts are nano-units; `due_nano` is whole minor units.

    lines + carried in + tax + shortfall = credits + prepaid + due + carried out, to the nano-unit.
    """

    class Status(models.TextChoices):
        DRAFT = "draft"
        FINALIZED = "finalized"

    tenant = models.CharField(max_length=63)
    month = models.DateField(help_text="First day of the UTC month.")
    number = models.BigIntegerField(null=True, blank=True, help_text="Consecutive per tenant, from 1.")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.DRAFT)
    currency = models.CharField(max_length=3)
    lines_nano = models.BigIntegerField(default=0, help_text="Sum of the lines that have a price.")
    carried_in_nano = models.BigIntegerField(default=0, help_text="Carried over from the previous invoice.")
    credits_nano = models.BigIntegerField(default=0, help_text="Paid by credits.")
    prepaid_nano = models.BigIntegerField(default=0, help_text="Paid from the prepaid balance.")
    shortfall_nano = models.BigIntegerField(
        default=0,
        db_default=0,
        help_text="Deficit of the prepaid balance that this invoice also charges, in whole minor units, "
        "without tax.",
    )
    due_nano = models.BigIntegerField(default=0, help_text="Amount to pay, in whole minor units.")
    carried_out_nano = models.BigIntegerField(
        default=0, help_text="Carried to the next invoice: below one minor unit, or negative."
    )
    tax_nano = models.BigIntegerField(default=0, db_default=0, help_text="Tax, in whole minor units.")
    tax_kind = models.CharField(
        max_length=15,
        choices=TaxKind.choices,
        blank=True,
        default="",
        db_default="",
        help_text="Empty without a tax treatment.",
    )
    tax_label = models.CharField(max_length=30, blank=True, default="", db_default="")
    tax_rate_percent = models.DecimalField(
        max_digits=7, decimal_places=4, default=Decimal(0), db_default=Decimal(0)
    )
    tax_number = models.CharField(max_length=40, blank=True, default="", db_default="")
    tax_text = models.CharField(max_length=300, blank=True, default="", db_default="")
    unpriced = models.BooleanField(default=False, help_text="True if a line has no price.")
    drafted_at = models.DateTimeField()
    finalized_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=["tenant", "-id"], name="invoice_list")]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "month"], name="invoice_once_a_month"),
            models.UniqueConstraint(fields=["tenant", "number"], name="invoice_number_once"),
            models.CheckConstraint(
                condition=models.Q(status="draft", number=None, finalized_at=None)
                | models.Q(status="finalized", number__gte=1, finalized_at__isnull=False),
                name="invoice_number_when_final",
            ),
            models.CheckConstraint(
                condition=models.Q(
                    due_nano=models.F("lines_nano")
                    + models.F("carried_in_nano")
                    + models.F("tax_nano")
                    + models.F("shortfall_nano")
                    - models.F("credits_nano")
                    - models.F("prepaid_nano")
                    - models.F("carried_out_nano")
                ),
                name="invoice_adds_up",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.month:%Y-%m}" + (f" no. {self.number}" if self.number else " (draft)")

    @property
    def is_final(self) -> bool:
        """True once finalized: nothing changes any more."""
        return self.status == self.Status.FINALIZED

    @property
    def net_nano(self) -> int:
        """Invoiced usage without tax: lines and carried in, less credits and carried out."""
        return self.prepaid_nano + self.due_nano - self.shortfall_nano - self.tax_nano

    @property
    def title(self) -> str:
        """Document number, as `ACME-000012`, or `draft`."""
        return f"{self.tenant.upper()}-{self.number:06}" if self.number else "draft"


class InvoiceLine(models.Model):
    """Usage of one item by one key and adapter at one price: quantity times price."""

    invoice = models.ForeignKey(Invoice, models.CASCADE, related_name="lines")
    position = models.IntegerField(help_text="From 1.")
    month = models.DateField(help_text="Month of the usage. A month before the invoice's is an adjustment.")
    project = models.CharField(max_length=200, blank=True)
    key_id = models.CharField(max_length=200, blank=True)
    key_name = models.CharField(
        max_length=100,
        null=True,
        blank=True,
        help_text="Key name at finalization. Null if finalized before names were stored.",
    )
    adapter = models.CharField(max_length=200, blank=True, help_text="Adapter name; '' for the base model.")
    base_model = models.CharField(max_length=200, blank=True)
    backend = models.CharField(max_length=200, blank=True)
    item = models.CharField(max_length=20)
    quantity = models.BigIntegerField()
    unit_nano = models.BigIntegerField(
        null=True, help_text="Price of `per` units of the item; null if unpriced."
    )
    per = models.BigIntegerField()
    amount_nano = models.BigIntegerField(null=True, help_text="Null: unpriced.")

    class Meta:
        ordering = ("position",)
        constraints = [models.UniqueConstraint(fields=["invoice", "position"], name="invoice_line_once")]

    def __str__(self) -> str:
        return f"{self.adapter or self.base_model} {self.item}: {self.quantity}"

    @property
    def adjusts(self) -> bool:
        """True for usage of an earlier month, which was closed before."""
        return self.month < self.invoice.month


class InvoicePdf(StoredPdf):
    """A finalized invoice's document."""

    invoice = models.OneToOneField(Invoice, models.CASCADE, primary_key=True, related_name="pdf")

    class Meta:
        indexes = [
            models.Index(
                fields=["render_at"], condition=models.Q(render_at__isnull=False), name="invoice_pdf_due"
            )
        ]

    def __str__(self) -> str:
        return self.key or f"of invoice {self.invoice_id}, not rendered yet"
