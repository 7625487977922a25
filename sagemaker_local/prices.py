"""Price List and Savings Plans APIs, with prices of a few instance types in the local region.

On-demand prices are AWS's published ones. Plan rates are invented: 20 percent below for each step of payment.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

HOURLY: Final = {
    "ml.g5.2xlarge": Decimal("1.515"),
    "ml.g5.12xlarge": Decimal("7.09"),
    "ml.g6.12xlarge": Decimal("5.752"),
    "ml.p4d.24xlarge": Decimal("37.688"),
}
"""USD per hour of an instance of an endpoint."""
_PAYMENTS: Final = {
    "No Upfront": Decimal("0.8"),
    "Partial Upfront": Decimal("0.64"),
    "All Upfront": Decimal("0.512"),
}
_YEAR: Final = 365 * 24 * 3600
_PAGE: Final = 3
"""Items of a page, so that a client that reads only the first one fails."""


class Prices:
    """Answers for one region."""

    def __init__(self, region: str) -> None:
        self._region = region

    async def products(self, request: dict[str, Any]) -> dict[str, Any]:
        """GetProducts, filtered by region and component alone."""
        asked = {item["Field"]: item["Value"] for item in request.get("Filters", [])}
        found = [
            _product(self._region, component, name, price)
            for component in ("Hosting", "Training")
            for name, price in HOURLY.items()
            if asked.get("component", component) == component
            and asked.get("regionCode", self._region) == self._region
        ]
        odd = _product(self._region, "Hosting", "ml.g5.2xlarge", Decimal(0)).replace('"Hrs"', '"Requests"')
        page, following = _page([odd, *found], request.get("NextToken"))
        return {
            "FormatVersion": "aws_v1",
            "PriceList": page,
            **({"NextToken": following} if following else {}),
        }

    async def offering_rates(self, request: dict[str, Any]) -> dict[str, Any]:
        """DescribeSavingsPlansOfferingRates, filtered by payment and region alone."""
        regions = {value for item in request.get("filters", []) for value in item["values"]}
        found = [
            _rate(self._region, use, name, price, payment, years)
            for use in ("Host", "AsyncHost", "Train")
            for name, price in HOURLY.items()
            for payment in request.get("savingsPlanPaymentOptions", _PAYMENTS)
            for years in (1, 3)
            if not regions or self._region in regions
        ]
        page, following = _page(found, request.get("nextToken"))
        return {"searchResults": page, **({"nextToken": following} if following else {})}


def _page(found: list[Any], token: str | None) -> tuple[list[Any], str]:
    start = int(token or 0)
    return found[start : start + _PAGE], str(start + _PAGE) if start + _PAGE < len(found) else ""


def _product(region: str, component: str, name: str, price: Decimal) -> str:
    use = "Host" if component == "Hosting" else "Train"
    attributes = {
        "instanceName": name,
        "component": component,
        "regionCode": region,
        "usagetype": f"USE1-{use}:{name}",
    }
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price:.10f}"}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": terms})


def _rate(region: str, use: str, name: str, price: Decimal, payment: str, years: int) -> dict[str, Any]:
    rate = price * _PAYMENTS[payment] / years
    return {
        "savingsPlanOffering": {
            "offeringId": "0",
            "paymentOption": payment,
            "planType": "SageMaker",
            "durationSeconds": years * _YEAR,
            "currency": "USD",
        },
        "rate": f"{rate:.6f}",
        "unit": "Hrs",
        "productType": "SageMaker",
        "serviceCode": "AmazonSageMaker",
        "usageType": f"USE1-{use}:{name}",
        "operation": "RunInstance",
        "properties": [{"name": "region", "value": region}, {"name": "instanceType", "value": name}],
    }
