"""`manage.py search_indexes`: makes what a migration had to leave out where pg_trgm was not to be had."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from controlplane.platform.row_security.name_search import NAME_VIEWS, index_sql, indexes_missing


class Command(BaseCommand):
    help = (
        "Makes the indexes of trigrams that searches by name use on PostgreSQL. Run it as the tables' owner."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("only PostgreSQL has pg_trgm: nothing to do for this database")
        with connection.cursor() as cursor:
            for view in NAME_VIEWS:
                for statement in index_sql(view):
                    cursor.execute(statement)
        if missing := indexes_missing(connection):
            raise CommandError(
                f"{', '.join(missing)} cannot be made: install PostgreSQL's contrib modules, and"
                " CREATE EXTENSION pg_trgm as a role that may"
            )
        self.stdout.write("searches by name have their indexes")
