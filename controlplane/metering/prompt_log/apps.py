from __future__ import annotations

from django.apps import AppConfig


class PromptLogConfig(AppConfig):
    name = "controlplane.metering.prompt_log"
