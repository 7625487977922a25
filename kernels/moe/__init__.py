"""Mixture of experts: which experts each row takes, and the rows of each expert side by side.

`route` and `route_by_group` choose the experts of each row. `Worklist` sorts the (row, expert) pairs by
expert, once per layer; gate-up, down and their adapters all read it. `reference.py` says what a layer
computes, one row at a time.
The operations are PyTorch's on every device.
"""

from __future__ import annotations

from kernels.moe.routing import GroupRule, route, route_by_group
from kernels.moe.worklist import Worklist

__all__ = ["GroupRule", "Worklist", "route", "route_by_group"]
