"""Compute how much of a machine a copy of a base model needs, with reasons."""

from __future__ import annotations

from controlplane.deployments.sizing.instances import INSTANCES, Instance
from controlplane.deployments.sizing.requirements import Load, Requirements, Shape, requirements

__all__ = ["INSTANCES", "Instance", "Load", "Requirements", "Shape", "requirements"]
