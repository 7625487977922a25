"""`manage.py makemigrations`: Django's command, for changes that the database sees."""

from __future__ import annotations

from django.core.management.commands import makemigrations

from controlplane.platform.migration_changes import SchemaAutodetector


class Command(makemigrations.Command):
    autodetector = SchemaAutodetector
