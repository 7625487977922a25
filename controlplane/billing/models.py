"""Price books. Amounts are integers: nano-units (1e-9) of the book's currency per token."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models


class PriceBook(models.Model):
    """A list of prices. The default one prices every tenant."""

    name = models.CharField(max_length=63, unique=True)
    currency = models.CharField(max_length=3, default="USD")
    is_default = models.BooleanField(default=False)
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


class Price(models.Model):
    """What a token costs from a UTC day on, until a later row; rows are only ever added."""

    book = models.ForeignKey(PriceBook, models.CASCADE, related_name="prices")
    base_model = models.CharField(max_length=63)
    adapter = models.CharField(
        max_length=130, blank=True, help_text="`<tenant>/<adapter>`; '' prices the base and all its adapters."
    )
    effective_from = models.DateField(help_text="UTC day.")
    input_nano = models.BigIntegerField(validators=[MinValueValidator(0)])
    cached_input_nano = models.BigIntegerField(validators=[MinValueValidator(0)])
    output_nano = models.BigIntegerField(validators=[MinValueValidator(0)])
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("base_model", "adapter", "effective_from")
        constraints = [
            models.UniqueConstraint(
                fields=["book", "base_model", "adapter", "effective_from"], name="price_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.adapter or self.base_model} from {self.effective_from}"
