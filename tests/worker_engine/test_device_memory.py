"""Memory of a device: the accounting, and the message if it does not suffice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_engine.graph_case import build_engine
from worker_engine.device_memory import beside_pool, demand_room
from worker_engine.errors import ConfigError
from worker_engine.models import load_config

GIB = 2**30


def test_what_fits_is_named() -> None:
    demand_room(10 * GIB, 2 * GIB, 12 * GIB)
    with pytest.raises(ConfigError, match=r"--memory-gib 10.0: .* 11.5 GiB are free, .* 2.0; set it to 9.5"):
        demand_room(10 * GIB, 2 * GIB, 12 * GIB - GIB // 2)
    with pytest.raises(ConfigError, match="no room for a pool"):
        demand_room(10 * GIB, 2 * GIB, GIB)


def test_tables_of_recordings_are_counted_to_the_byte(tiny_model: Path) -> None:
    engine = build_engine(tiny_model, replays=True, max_adapters_per_batch=5)
    assert engine.graphs is not None
    tables = engine.graphs._tables
    model = load_config(tiny_model)
    sizes: Any = {"rows": 128, "sequences": 8, "merges": False, "dtype": torch.bfloat16}
    few, many = (beside_pool(model, adapters=count, recordings=1, **sizes) for count in (5, 10))
    assert many - few == tables._table.nbytes + tables._scale.nbytes
    none = beside_pool(model, adapters=5, recordings=0, **sizes)
    assert none < few
