"""`manage.py migrate`: Django's command, for changes that the database sees."""

from __future__ import annotations

from django.core.management.commands import migrate

from controlplane.platform.migration_changes import SchemaAutodetector


class Command(migrate.Command):
    autodetector = SchemaAutodetector
