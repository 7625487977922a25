"""The blended price of a million tokens (3 parts input, 1 part output), by two formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from contracts.recipes.spec_fields import SpecFields

BY_THROUGHPUT = "(1 - discount) x price an hour / (concurrency / p50 ITL x 3600 / 1e6) / 4"
BY_LIST_PRICE = "(3 x price of input + price of output) / 4"


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a machine, and list prices of an API.

    Attributes:
        hour: of the machine, in `currency`.
        discount: fraction below 1.
        input, output: list price of a million tokens; None without a list.
    """

    hour: float
    currency: str = "USD"
    discount: float = 0.0
    input: float | None = None
    output: float | None = None

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        """Parse the section. Raises SpecError naming the field."""
        listed = [fields.number(name) if name in fields else None for name in ("input", "output")]
        read = cls(
            fields.number("hour"), fields.text("currency", "USD"), fields.number("discount", 0.0), *listed
        )
        if read.discount >= 1:
            raise fields.error("discount", "must be a part of 1")
        if (read.input is None) != (read.output is None):
            raise fields.error("input", "and output go together")
        fields.end()
        return read

    def blended(self, *, throughput: float | None) -> list[dict[str, Any]]:
        """Return the blended prices, each with its formula.

        Args:
            throughput: concurrency / p50 ITL; None if unknown.
        """
        prices: list[dict[str, Any]] = []
        if throughput:
            an_hour = throughput * 3600 / 1e6
            prices.append(
                {
                    "by": "throughput",
                    "formula": BY_THROUGHPUT,
                    "currency": self.currency,
                    "per_million": (1 - self.discount) * self.hour / an_hour / 4,
                }
            )
        if self.input is not None and self.output is not None:
            prices.append(
                {
                    "by": "list_price",
                    "formula": BY_LIST_PRICE,
                    "currency": self.currency,
                    "per_million": (3 * self.input + self.output) / 4,
                }
            )
        return prices
