"""Credit notes on finalized invoices. Rows are only added; triggers refuse the rest."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from controlplane.billing.models.documents import StoredPdf
from controlplane.billing.models.invoices import Invoice, InvoiceLine
from controlplane.billing.models.parties import PartiesNamed


class CreditNote(PartiesNamed):
    """Credits a finalized invoice in part or in full, or voids a note that did. Amounts in nano-units.

    A voiding note has the amounts of the voided one, and reverses them.

    net + tax = pre-payment + post-payment, to the nano-unit (a check of the table).
    """

    class Reason(models.TextChoices):
        DUPLICATED_CHARGE = "duplicated_charge", _("Duplicated Charge")
        PRODUCT_UNSATISFACTORY = "product_unsatisfactory", _("Product Unsatisfactory")
        ORDER_CHANGE = "order_change", _("Order Change")
        ORDER_CANCELLATION = "order_cancellation", _("Order Cancellation")
        FRAUDULENT_CHARGE = "fraudulent_charge", _("Fraudulent Charge")
        OTHER = "other", _("Other")

    class PostPayment(models.TextChoices):
        BALANCE = "balance"
        """Added to the prepaid balance, which the next invoice draws."""
        CREDIT = "credit"
        """Granted as a credit, from today on and without an end."""
        REFUND = "refund"
        """Paid back as money."""

    tenant = models.CharField(max_length=63)
    number = models.BigIntegerField(help_text="Consecutive per tenant, from 1.")
    invoice = models.ForeignKey(Invoice, models.PROTECT, related_name="credit_notes")
    reason = models.CharField(max_length=25, choices=Reason.choices)
    memo = models.CharField(max_length=500, blank=True)
    currency = models.CharField(max_length=3)
    net_nano = models.BigIntegerField(help_text="Sum of the lines, without tax.")
    tax_nano = models.BigIntegerField(help_text="In whole minor units of the currency.")
    pre_payment_nano = models.BigIntegerField(help_text="Deducted from the open amount of the invoice.")
    post_payment_nano = models.BigIntegerField(help_text="Returned from the paid amount.")
    post_payment_as = models.CharField(
        max_length=10, choices=PostPayment.choices, default=PostPayment.BALANCE
    )
    # A trigger allows one void per note; consecutive numbers serialize its writers. The index is below.
    voids = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        blank=True,
        related_name="voidings",
        db_index=False,
        help_text="The credit note that this one voids, if any.",
    )
    issued_at = models.DateTimeField()

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=["tenant", "-id"], name="credit_note_list"),
            models.Index(fields=["voids"], condition=models.Q(voids__isnull=False), name="credit_note_voids"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "number"], name="credit_note_number_once"),
            models.CheckConstraint(
                condition=models.Q(
                    number__gte=1,
                    net_nano__gt=0,
                    tax_nano__gte=0,
                    pre_payment_nano__gte=0,
                    post_payment_nano__gte=0,
                ),
                name="credit_note_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(
                    net_nano=models.F("pre_payment_nano")
                    + models.F("post_payment_nano")
                    - models.F("tax_nano")
                ),
                name="credit_note_adds_up",
            ),
        ]

    def __str__(self) -> str:
        return f"credit note {self.title} of invoice {self.invoice_id}"

    @property
    def title(self) -> str:
        """Document number, as `ACME-CN000003`; no invoice has such a one."""
        return f"{self.tenant.upper()}-CN{self.number:06}"

    @property
    def voided_by(self) -> CreditNote | None:
        """The credit note that voids this one, or None."""
        return next(iter(self.voidings.all()), None)

    @property
    def total_nano(self) -> int:
        """Net plus tax."""
        return self.net_nano + self.tax_nano


class CreditNoteLine(models.Model):
    """Amount credited on one of the invoice's lines, or on the invoice as a whole."""

    credit_note = models.ForeignKey(CreditNote, models.PROTECT, related_name="lines")
    position = models.IntegerField(help_text="From 1.")
    # The foreign key refuses to delete a credited line. Draft lines have none, so skip Django's lookup.
    invoice_line = models.ForeignKey(
        InvoiceLine,
        models.DO_NOTHING,
        null=True,
        related_name="credited",
        help_text="Null for the invoice as a whole.",
    )
    amount_nano = models.BigIntegerField(help_text="Without tax.")

    class Meta:
        ordering = ("position",)
        constraints = [
            models.UniqueConstraint(fields=["credit_note", "position"], name="credit_note_line_once"),
            models.CheckConstraint(condition=models.Q(amount_nano__gt=0), name="credit_note_line_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.amount_nano} of line {self.invoice_line_id}"


class CreditNotePdf(StoredPdf):
    """A credit note's document."""

    credit_note = models.OneToOneField(CreditNote, models.CASCADE, primary_key=True, related_name="pdf")

    class Meta:
        indexes = [
            models.Index(
                fields=["render_at"], condition=models.Q(render_at__isnull=False), name="credit_note_pdf_due"
            )
        ]

    def __str__(self) -> str:
        return self.key or f"of credit note {self.credit_note_id}, not rendered yet"
