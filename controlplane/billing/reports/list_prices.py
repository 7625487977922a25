"""Prices of instances that a new installation starts with, as AWS publishes them.

AWS's articles name no region; the prices are those of us-east-1.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

_SOURCE: Final = (
    "SageMaker hosting prices per hour in USD, as cited in AWS articles from 2024 to 2026 without a "
    "region; treated as us-east-1. Add your own prices from the day they apply."
)
_FROM: Final = dt.date(2024, 12, 2)
_HOUR_NANO: Final = {
    "ml.g5.2xlarge": 1_515_000_000,
    "ml.g5.12xlarge": 7_090_000_000,
    "ml.g6.2xlarge": 1_222_000_000,
    "ml.g6.12xlarge": 5_752_000_000,
    "ml.g6.48xlarge": 16_688_000_000,
    "ml.p5.48xlarge": 113_068_000_000,
}
_SAMPLES: Final = (
    "SageMaker hosting prices per hour in USD: github.com/aws-samples/foundation-model-benchmarking-tool, "
    "configs/pricing.yml, commit 244fe980 of 23 August 2024; names no region, treated as us-east-1."
)
_SAMPLES_FROM: Final = dt.date(2024, 8, 23)
_SAMPLES_HOUR_NANO: Final = {
    "ml.p4d.24xlarge": 37_688_000_000,
    "ml.inf2.48xlarge": 15_580_000_000,
    "ml.trn1.32xlarge": 28_497_000_000,
}
_TOOLKIT: Final = (
    "AWS Machine Learning Blog, July 2024, inference optimization toolkit, part 1: ml.g5.12xlarge is 79.88% "
    "cheaper than ml.p4d.24xlarge at the 1-year SageMaker Savings Plan rate; names neither rate nor region, "
    "treated as us-east-1."
)
_TOOLKIT_FROM: Final = dt.date(2024, 7, 9)


def add_list_prices(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Add on-demand prices, and the relation of two Savings Plan rates that an AWS article states.

    Existing prices are kept. No absolute Savings Plan rate is among the rows: no dated source was at hand
    that states one.
    """
    _add(apps, _HOUR_NANO, _FROM, _SOURCE)
    _add(apps, _SAMPLES_HOUR_NANO, _SAMPLES_FROM, _SAMPLES)
    apps.get_model("reports", "InstancePrice").objects.get_or_create(
        instance_type="ml.g5.12xlarge",
        region="us-east-1",
        plan="savings_plan_1y",
        effective_from=_TOOLKIT_FROM,
        defaults={
            "currency": "USD",
            "reference_type": "ml.p4d.24xlarge",
            "percent_below": "79.88",
            "source": _TOOLKIT,
        },
    )


def _add(apps: StateApps, prices: dict[str, int], day: dt.date, source: str) -> None:
    rows: Any = apps.get_model("reports", "InstancePrice").objects
    for instance_type, nano in prices.items():
        rows.get_or_create(
            instance_type=instance_type,
            region="us-east-1",
            effective_from=day,
            defaults={"currency": "USD", "hour_nano": nano, "source": source},
        )
