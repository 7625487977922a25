"""The list prices that the migration adds: tests that empty the tables remove them too."""

from __future__ import annotations

from typing import Any, cast

import pytest
from django.apps import apps

from controlplane.billing.reports.list_prices import add_list_prices


@pytest.fixture
def list_prices(db: None) -> None:
    add_list_prices(cast(Any, apps), cast(Any, None))
