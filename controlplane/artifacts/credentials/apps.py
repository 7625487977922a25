from __future__ import annotations

from django.apps import AppConfig


class CredentialsConfig(AppConfig):
    name = "controlplane.artifacts.credentials"
