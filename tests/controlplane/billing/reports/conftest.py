"""The list prices that a migration adds; tests that empty the tables take them along."""

from __future__ import annotations

import importlib

import pytest
from django.apps import apps


@pytest.fixture
def list_prices(db: None) -> None:
    migration = importlib.import_module("controlplane.billing.reports.migrations.0002_list_prices")
    migration.add(apps, None)
