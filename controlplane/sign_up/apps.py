from __future__ import annotations

from django.apps import AppConfig


class SignUpConfig(AppConfig):
    name = "controlplane.sign_up"
