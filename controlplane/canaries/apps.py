from __future__ import annotations

from django.apps import AppConfig


class CanariesConfig(AppConfig):
    name = "controlplane.canaries"
