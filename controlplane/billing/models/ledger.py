"""The journal: who owes what and why. Rows are only ever added; triggers refuse the rest.

An entry moves one amount from one account to another, so debits equal credits in every row: there is no
half of an entry that could be missing. Names, not keys, lead to tenants: the books outlive them.
"""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class Account(models.TextChoices):
    """The accounts, the same for each tenant."""

    UNBILLED = "unbilled", _("Unbilled")
    """What was used and not settled yet, with what an invoice's rounding left over (asset)."""
    RECEIVABLE = "receivable", _("Receivable")
    """What finalized invoices ask for (asset)."""
    CASH = "cash", _("Cash")
    """What was paid (asset)."""
    PREPAID = "prepaid", _("Prepaid")
    """What was paid in advance (liability)."""
    CREDIT = "credit", _("Credit")
    """What was granted and can still be drawn (liability)."""
    REVENUE = "revenue", _("Revenue")
    TAX = "tax", _("Tax")
    """What is owed to the tax office (liability)."""
    ALLOWANCE = "allowance", _("Allowance")
    """What credit notes took back of revenue, without tax (contra revenue)."""
    PROMOTION = "promotion", _("Promotion")
    """What grants cost (expense)."""


TOP_UPS: Final = (Account.PREPAID, Account.CREDIT)
"""An entry that credits one of them adds to what calls are paid from."""


class EntryKind(models.TextChoices):
    """Why an entry was made."""

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
    """What is prepaid was below 0, and is asked for."""
    TAX = "tax"
    CREDIT_NOTE = "credit_note"


class LedgerHead(models.Model):
    """A tenant's counters. Whoever writes to its books locks this row first: one after another."""

    tenant = models.CharField(primary_key=True, max_length=63)
    entries = models.BigIntegerField(default=0, help_text="Number of the newest entry.")
    invoices = models.BigIntegerField(default=0, help_text="Number of the newest invoice.")
    credit_notes = models.BigIntegerField(
        default=0, db_default=0, help_text="Number of the newest credit note."
    )
    closed_through = models.DateField(
        null=True, blank=True, help_text="First day of the last month that is invoiced and closed."
    )

    def __str__(self) -> str:
        return self.tenant


class LedgerCheckpoint(models.Model):
    """Balances as entries up to a number have them, so that only later ones are added up. Entries never
    change: what stands here is right for good."""

    tenant = models.CharField(primary_key=True, max_length=63)
    through = models.BigIntegerField(help_text="Number of the last entry that is in it.")
    sums = models.JSONField(help_text="Debits less credits in nano-units, by account.")

    def __str__(self) -> str:
        return f"{self.tenant} through {self.through}"


class CreditGrant(models.Model):
    """A credit: drawn for usage of its days before anything is to be paid. What is left the journal says."""

    tenant = models.CharField(max_length=63)
    amount_nano = models.BigIntegerField()
    starts = models.DateField(help_text="First UTC day whose usage it pays.")
    expires_on = models.DateField(null=True, blank=True, help_text="Last such day; null for no end.")
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
    """`amount_nano` from account `credit` to account `debit`, in nano-units (1e-9) of `currency`."""

    tenant = models.CharField(max_length=63)
    number = models.BigIntegerField(help_text="Consecutive within a tenant, from 1.")
    at = models.DateTimeField()
    day = models.DateField(help_text="UTC day that it is about.")
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
            # A few of many: counted every 5 s for a tenant whose calls stop when nothing is left.
            models.Index(
                fields=["tenant"],
                condition=models.Q(credit__in=TOP_UPS),
                name="journal_top_ups",
            ),
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
    """What a usage entry, or its reversal, was computed from: quantity times price."""

    entry = models.OneToOneField(JournalEntry, models.PROTECT, primary_key=True, related_name="usage")
    tenant = models.CharField(max_length=63)
    day = models.DateField()
    month = models.DateField(help_text="First day of the month whose invoice has it.")
    project = models.CharField(max_length=200, blank=True)
    key_id = models.CharField(max_length=200, blank=True)
    adapter = models.CharField(max_length=200, blank=True, help_text="Name; '' for the base alone.")
    base_model = models.CharField(max_length=200, blank=True)
    backend = models.CharField(max_length=200, blank=True)
    item = models.CharField(max_length=20, help_text="What was used; see `billing.items`.")
    quantity = models.BigIntegerField(help_text="Negative in a reversal.")
    unit_nano = models.BigIntegerField(help_text="Price of `per` of the quantity.")
    per = models.BigIntegerField()
    amount_nano = models.BigIntegerField(help_text="The entry's, negative in a reversal.")

    KEY = ("project", "key_id", "adapter", "base_model", "backend", "item")

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "day"], name="usage_posting_day"),
            models.Index(fields=["tenant", "month"], name="usage_posting_month"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.day} {self.item}: {self.quantity}"


class PostedDay(models.Model):
    """What the books were last brought to follow of a tenant's day; a day that reads alike needs no look."""

    tenant = models.CharField(max_length=63)
    day = models.DateField()
    mark = models.CharField(max_length=200, help_text="Of the quantities, and of the prices.")
    unpriced = models.BooleanField(
        null=True, help_text="Some of its usage has no price; null: booked by a release that did not say."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "day"], name="posted_day_once")]

    def __str__(self) -> str:
        return f"{self.tenant} {self.day}"
