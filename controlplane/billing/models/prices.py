"""Price books, their terms, and their prices in nano-units (1e-9)."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models


class PriceBook(models.Model):
    """A list of prices; a `PriceBookTerm` puts it in force for everyone or for one tenant."""

    name = models.CharField(max_length=63, unique=True)
    currency = models.CharField(max_length=3, default="USD")
    is_default = models.BooleanField(
        default=False, help_text="Applies to all tenants, from today or a later day."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(
                fields=["is_default"], condition=models.Q(is_default=True), name="price_book_one_default"
            )
        ]

    def __str__(self) -> str:
        return self.name


class PriceBookTerm(models.Model):
    """The UTC days on which a book is in force, for everyone or as one tenant's own, which takes precedence.

    Terms for the same tenant, or for everyone, never overlap. Tenants are names, not keys: terms outlive
    them.
    """

    book = models.ForeignKey(PriceBook, models.PROTECT, related_name="terms")
    tenant = models.CharField(max_length=63, blank=True, help_text="Tenant id; '' for all tenants.")
    starts = models.DateField(help_text="First UTC day.")
    ends = models.DateField(null=True, blank=True, help_text="Last UTC day, included; null for no end.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("tenant", "starts")
        constraints = [
            models.UniqueConstraint(fields=["tenant", "starts"], name="price_book_term_once"),
            models.CheckConstraint(
                condition=models.Q(ends=None) | models.Q(ends__gte=models.F("starts")),
                name="price_book_term_order",
            ),
        ]

    def __str__(self) -> str:
        until = f"to {self.ends}" if self.ends else "on"
        return f"{self.book} for {self.tenant or 'everyone'} from {self.starts} {until}"


class Price(models.Model):
    """Price of calls from a UTC day on, until a later row; rows are only ever added."""

    book = models.ForeignKey(PriceBook, models.CASCADE, related_name="prices")
    base_model = models.CharField(max_length=63)
    adapter = models.CharField(
        max_length=130,
        blank=True,
        help_text="`<tenant>/<adapter>`; '' for the base model and all its adapters.",
    )
    backend = models.CharField(
        max_length=63, blank=True, db_default="", help_text="Kind of backend; '' for all backends."
    )
    effective_from = models.DateField(help_text="UTC day.")
    input_nano = models.BigIntegerField(validators=[MinValueValidator(0)], help_text="Per prompt token.")
    cached_input_nano = models.BigIntegerField(validators=[MinValueValidator(0)])
    output_nano = models.BigIntegerField(validators=[MinValueValidator(0)])
    reasoning_nano = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Per output token of the thought; null for `output_nano`."
    )
    request_nano = models.BigIntegerField(
        default=0,
        db_default=0,
        validators=[MinValueValidator(0)],
        help_text="Per attempt, unless it ended in an error.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("base_model", "adapter", "backend", "effective_from")
        constraints = [
            models.UniqueConstraint(
                fields=["book", "base_model", "adapter", "backend", "effective_from"],
                name="price_once_by_backend",
            ),
            models.CheckConstraint(
                condition=models.Q(
                    input_nano__gte=0, cached_input_nano__gte=0, output_nano__gte=0, request_nano__gte=0
                ),
                name="price_not_negative",
            ),
        ]

    def __str__(self) -> str:
        backend = f" on {self.backend}" if self.backend else ""
        return f"{self.adapter or self.base_model}{backend} from {self.effective_from}"


class HostingPrice(models.Model):
    """Price of hosting time from a UTC day on, until a later row; rows are only ever added."""

    class Kind(models.TextChoices):
        """Timed item; see `billing.items` for the unit of its quantities."""

        ADAPTER_HOUR = "adapter_hour"
        GPU_HOUR = "gpu_hour"
        STORAGE_GB_HOUR = "storage_gb_hour"

    book = models.ForeignKey(PriceBook, models.CASCADE, related_name="hosting_prices")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    base_model = models.CharField(max_length=63, blank=True, help_text="'' for all.")
    adapter = models.CharField(max_length=130, blank=True, help_text="`<tenant>/<adapter>`; '' for all.")
    backend = models.CharField(max_length=63, blank=True, help_text="'' for all.")
    effective_from = models.DateField(help_text="UTC day.")
    nano = models.BigIntegerField(validators=[MinValueValidator(0)], help_text="Nano-units per hour.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("kind", "base_model", "adapter", "backend", "effective_from")
        constraints = [
            models.UniqueConstraint(
                fields=["book", "kind", "base_model", "adapter", "backend", "effective_from"],
                name="hosting_price_once",
            ),
            models.CheckConstraint(condition=models.Q(nano__gte=0), name="hosting_price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.adapter or self.base_model or 'all'} from {self.effective_from}"
