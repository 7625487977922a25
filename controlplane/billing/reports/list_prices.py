"""List prices of instances that a new installation starts with."""

from __future__ import annotations

import datetime as dt
from typing import Final

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


def add_list_prices(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Add the list prices; existing prices are kept."""
    prices = apps.get_model("reports", "InstancePrice").objects
    for instance_type, nano in _HOUR_NANO.items():
        prices.get_or_create(
            instance_type=instance_type,
            region="us-east-1",
            effective_from=_FROM,
            defaults={"currency": "USD", "hour_nano": nano, "source": _SOURCE},
        )
