"""`manage.py search_indexes`: creates the indexes that migrations skip without pg_trgm."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from controlplane.platform.row_security.name_search import NAME_VIEWS, index_sql, indexes_missing


class Command(BaseCommand):
    help = "Create the trigram indexes for searches by name on PostgreSQL. Run it as the tables' owner."

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("pg_trgm needs PostgreSQL: nothing to do for this database")
        with connection.cursor() as cursor:
            for view in NAME_VIEWS:
                for statement in index_sql(view):
                    cursor.execute(statement)
        if missing := indexes_missing(connection):
            raise CommandError(
                f"{', '.join(missing)} cannot be created: install PostgreSQL's contrib modules, and"
                " run CREATE EXTENSION pg_trgm as a role with that right"
            )
        self.stdout.write("the indexes for searches by name exist")
