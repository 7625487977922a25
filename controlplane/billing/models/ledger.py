"""The journal of what tenants owe. Rows are only ever added; triggers refuse the rest.

An entry moves one amount from one account to another, so debits equal credits in every row. Tenants are
referenced by name and not by foreign key: the ledger outlives them.
"""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class Account(models.TextChoices):
    """The accounts, the same for each tenant."""

    UNBILLED = "unbilled", _("Unbilled")
    """Usage not invoiced yet, with the rounding that an invoice carried over (asset)."""
    RECEIVABLE = "receivable", _("Receivable")
    """Amounts due on finalized invoices (asset)."""
    CASH = "cash", _("Cash")
    """Money received (asset)."""
    PREPAID = "prepaid", _("Prepaid")
    """Prepaid balance (liability)."""
    CREDIT = "credit", _("Credit")
    """Credits granted and not drawn yet (liability)."""
    REVENUE = "revenue", _("Revenue")
    TAX = "tax", _("Tax")
    """Tax owed to the tax office (liability)."""
    ALLOWANCE = "allowance", _("Allowance")
    """Revenue that credit notes returned, without tax (contra revenue)."""
    PROMOTION = "promotion", _("Promotion")
    """Cost of granted credits (expense)."""


TOP_UPS: Final = (Account.PREPAID, Account.CREDIT)
"""An entry that credits one of them adds to the balance that calls are paid from."""


class EntryKind(models.TextChoices):
    """Reason for an entry."""

    USAGE = "usage"
    REVERSAL = "reversal"
    GRANT = "grant"
    EXPIRY = "expiry"
    DEPOSIT = "deposit"
    PAYMENT = "payment"
    CREDIT_DRAWN = "credit_drawn"
    PREPAID_DRAWN = "prepaid_drawn"
    INVOICED = "invoiced"
    SHORTFALL = "shortfall"
    """Invoices a negative prepaid balance."""
    TAX = "tax"
    CREDIT_NOTE = "credit_note"


class LedgerHead(models.Model):
    """A tenant's counters. Writers of its ledger lock this row first, so that they run one after another."""

    tenant = models.CharField(primary_key=True, max_length=63)
    entries = models.BigIntegerField(default=0, help_text="Number of the newest entry.")
    invoices = models.BigIntegerField(default=0, help_text="Number of the newest invoice.")
    credit_notes = models.BigIntegerField(
        default=0, db_default=0, help_text="Number of the newest credit note."
    )
    closed_through = models.DateField(null=True, blank=True, help_text="First day of the last closed month.")

    def __str__(self) -> str:
        return self.tenant


class LedgerCheckpoint(models.Model):
    """Balances up to an entry number, so that only later entries are summed.

    Entries never change, so a checkpoint never becomes wrong.
    """

    tenant = models.CharField(primary_key=True, max_length=63)
    through = models.BigIntegerField(help_text="Number of the last entry included.")
    sums = models.JSONField(help_text="Debits minus credits in nano-units, by account.")

    def __str__(self) -> str:
        return f"{self.tenant} through {self.through}"


class CreditGrant(models.Model):
    """A credit, which pays usage of its days before other payments. The journal has its remainder."""

    tenant = models.CharField(max_length=63)
    amount_nano = models.BigIntegerField()
    starts = models.DateField(help_text="First UTC day whose usage it pays for.")
    expires_on = models.DateField(null=True, blank=True, help_text="Last UTC day, included; null for no end.")
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=["tenant", "-id"], name="credit_grant_list")]
        constraints = [
            models.CheckConstraint(condition=models.Q(amount_nano__gt=0), name="credit_grant_positive"),
            models.CheckConstraint(
                condition=models.Q(expires_on=None) | models.Q(expires_on__gte=models.F("starts")),
                name="credit_grant_order",
            ),
        ]

    def __str__(self) -> str:
        return f"credit {self.pk} of {self.tenant}"


class JournalEntry(models.Model):
    """Moves `amount_nano` from account `credit` to account `debit`, in nano-units (1e-9) of `currency`."""

    tenant = models.CharField(max_length=63)
    number = models.BigIntegerField(help_text="Consecutive per tenant, from 1.")
    at = models.DateTimeField()
    day = models.DateField(help_text="UTC day that the entry applies to.")
    kind = models.CharField(max_length=15, choices=EntryKind.choices)
    debit = models.CharField(max_length=12, choices=Account.choices)
    credit = models.CharField(max_length=12, choices=Account.choices)
    amount_nano = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    reverses = models.OneToOneField("self", models.PROTECT, null=True, blank=True, related_name="reversal")
    grant = models.ForeignKey(CreditGrant, models.PROTECT, null=True, blank=True, related_name="entries")
    invoice = models.ForeignKey("Invoice", models.PROTECT, null=True, blank=True, related_name="entries")
    # No index: entries of a credit note are found by its invoice.
    credit_note = models.ForeignKey(
        "CreditNote", models.PROTECT, null=True, blank=True, related_name="entries", db_index=False
    )
    memo = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "journal entries"
        indexes = [
            models.Index(fields=["tenant", "-id"], name="journal_list"),
            # Few of many entries: counted every 5 s for a tenant whose calls stop at a zero balance.
            models.Index(fields=["tenant"], condition=models.Q(credit__in=TOP_UPS), name="journal_top_ups"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "number"], name="journal_number_once"),
            models.CheckConstraint(condition=models.Q(amount_nano__gt=0), name="journal_positive"),
            models.CheckConstraint(
                condition=~models.Q(debit=models.F("credit")), name="journal_two_accounts"
            ),
            models.CheckConstraint(
                condition=models.Q(debit__in=Account.values, credit__in=Account.values),
                name="journal_known_accounts",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.number}: {self.amount_nano} from {self.credit} to {self.debit}"


class UsagePosting(models.Model):
    """Quantity and price that a usage entry, or its reversal, was computed from."""

    entry = models.OneToOneField(JournalEntry, models.PROTECT, primary_key=True, related_name="usage")
    tenant = models.CharField(max_length=63)
    day = models.DateField()
    month = models.DateField(help_text="First day of the month of its invoice.")
    project = models.CharField(max_length=200, blank=True)
    key_id = models.CharField(max_length=200, blank=True)
    adapter = models.CharField(max_length=200, blank=True, help_text="Adapter name; '' for the base model.")
    base_model = models.CharField(max_length=200, blank=True)
    backend = models.CharField(max_length=200, blank=True)
    item = models.CharField(max_length=20, help_text="Billed item; see `billing.items`.")
    quantity = models.BigIntegerField(help_text="Negative in a reversal.")
    unit_nano = models.BigIntegerField(help_text="Price of `per` units of the item.")
    per = models.BigIntegerField()
    amount_nano = models.BigIntegerField(help_text="Amount of the entry; negative in a reversal.")

    KEY = ("project", "key_id", "adapter", "base_model", "backend", "item")

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "day"], name="usage_posting_day"),
            models.Index(fields=["tenant", "month"], name="usage_posting_month"),
            # Covers sums of all tenants. SQLite has no INCLUDE, so the amount is a column of the key.
            models.Index(fields=["day", "tenant", "amount_nano"], name="usage_posting_spend"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.day} {self.item}: {self.quantity}"


class PostedDay(models.Model):
    """Marks of the usage and prices that a day was last booked with; an unchanged day is skipped."""

    tenant = models.CharField(max_length=63)
    day = models.DateField()
    mark = models.CharField(max_length=200, help_text="Fingerprint of the quantities and prices.")
    unpriced = models.BooleanField(
        null=True,
        help_text="True if some usage has no price. Null for entries from releases that did not record it.",
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "day"], name="posted_day_once")]

    def __str__(self) -> str:
        return f"{self.tenant} {self.day}"
