from __future__ import annotations

from django.apps import AppConfig


class OptimizationConfig(AppConfig):
    name = "controlplane.optimization"
