"""What a million tokens cost, by both formulas that are called blended (3 parts of input, 1 of output)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from contracts.recipes.spec_fields import SpecFields

BY_THROUGHPUT = "(1 - discount) x price an hour / (concurrency / p50 ITL x 3600 / 1e6) / 4"
BY_LIST_PRICE = "(3 x price of input + price of output) / 4"


@dataclass(frozen=True, slots=True)
class Price:
    """Attributes:
    hour: of the machine, in `currency`.
    discount: a part of 1.
    input, output: of a million tokens, by list; None where there is no list.
    """

    hour: float
    currency: str = "USD"
    discount: float = 0.0
    input: float | None = None
    output: float | None = None

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        """Raises SpecError naming the field."""
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
        """Each with its formula. `throughput` is concurrency / p50 ITL; None where it is not known."""
        told: list[dict[str, Any]] = []
        if throughput:
            an_hour = throughput * 3600 / 1e6
            told.append(
                {
                    "by": "throughput",
                    "formula": BY_THROUGHPUT,
                    "currency": self.currency,
                    "per_million": (1 - self.discount) * self.hour / an_hour / 4,
                }
            )
        if self.input is not None and self.output is not None:
            told.append(
                {
                    "by": "list_price",
                    "formula": BY_LIST_PRICE,
                    "currency": self.currency,
                    "per_million": (3 * self.input + self.output) / 4,
                }
            )
        return told
