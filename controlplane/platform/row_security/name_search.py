"""Search by part of a name, and by labels, under row policies.

Under a row policy PostgreSQL applies operators that may leak values (such as LIKE and @>) only after the
policy has passed the row. Such a search therefore reads every row, whatever the indexes. A view owned by the
tables' owner states the policy's condition itself, so the planner may use an index there (ADR 28).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db import connection
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Model, QuerySet, TextField
from django.db.models.expressions import RawSQL
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from controlplane.platform.row_security.policies import TENANT, PostgresqlOperation

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class NameView:
    """A table that is searched by name.

    Attributes:
        table, key: the table, which has a column `tenant_id`, and its primary key.
        column: the searched column.
        name: SQL of the column in one case; the column itself if it has only one case.
        fold: SQL function that converts the search text to that case.
        labels: JSON column (text to text) for searches by label; '' for none.
    """

    table: str
    key: str
    column: str
    name: str
    fold: str
    labels: str = ""

    @property
    def view(self) -> str:
        return f"{self.table}_names"

    @property
    def index(self) -> str:
        return f"{self.table}_trigrams"


ADAPTER_NAMES: Final = NameView("adapters_adapter", "id", "name", "name", "lower", "labels")
API_KEY_NAMES: Final = NameView("tenants_apikey", "public_id", "name", "upper(name)", "upper")
_AT_ONCE: Final = " WITH (fastupdate = off)"
NAME_VIEWS: Final = (ADAPTER_NAMES, API_KEY_NAMES)


def named(rows: QuerySet[M], view: NameView, text: str) -> QuerySet[M]:
    """Filter `rows` of the table of `view` by names that contain `text`, ignoring case.

    Searches of three or more characters use the trigram index, if it exists.
    """
    if connection.vendor != "postgresql":
        return rows.filter(**{f"{view.column}__icontains": text})
    pattern = f"%{connection.ops.prep_for_like_query(text)}%"
    sql = f"SELECT key FROM {view.view} WHERE name LIKE {view.fold}(%s)"  # noqa: S608  # names of ours
    return rows.filter(pk__in=RawSQL(sql, (pattern,)))  # noqa: S611  # its values are parameters


def labelled(rows: QuerySet[M], view: NameView, labels: Mapping[str, str]) -> QuerySet[M]:
    """Filter `rows` of the table of `view` by rows that have all of `labels`."""
    if connection.vendor == "postgresql":
        sql = f"SELECT key FROM {view.view} WHERE labels @> %s::jsonb"  # noqa: S608  # names of ours
        return rows.filter(pk__in=RawSQL(sql, (json.dumps(dict(labels)),)))  # noqa: S611  # the same
    for index, (key, value) in enumerate(labels.items()):
        # A transform takes the key literally; in a keyword of `filter` double underscores are look-ups.
        label_text = Cast(KeyTextTransform(key, view.labels), TextField())
        rows = rows.alias(**{f"label_{index}": label_text}).filter(**{f"label_{index}": value})
    return rows


def view_sql(view: NameView) -> str:
    """Return the view's definition. Its second source, `one`, makes it read-only."""
    labels = f", named.{view.labels} AS labels" if view.labels else ""
    return (
        f"CREATE OR REPLACE VIEW {view.view} AS"  # noqa: S608  # names of ours
        f" SELECT named.{view.key} AS key, named.tenant_id, {view.name} AS name{labels}"
        f" FROM {view.table} AS named, (SELECT 1) AS one"
        f" WHERE NOT (SELECT row_security_active('{view.table}'))"
        f" OR named.tenant_id = (SELECT {TENANT}) OR (SELECT {TENANT}) = '*'"
    )


def index_sql(view: NameView) -> Iterator[str]:
    """Yield statements that create the label index and the trigram index.

    Where pg_trgm is not available, a notice is raised instead. `fastupdate` is off: names are rarely written,
    and each search would scan the pending list.
    """
    if view.labels:
        index, columns = f"{view.table}_labels", f"({view.labels} jsonb_path_ops)"
        yield f"CREATE INDEX IF NOT EXISTS {index} ON {view.table} USING gin {columns}{_AT_ONCE}"
    yield (
        "DO $$ BEGIN CREATE EXTENSION IF NOT EXISTS pg_trgm;"
        f" CREATE INDEX IF NOT EXISTS {view.index} ON {view.table}"
        f" USING gin (({view.name}) gin_trgm_ops){_AT_ONCE};"
        " EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_file THEN"
        " RAISE NOTICE 'pg_trgm cannot be installed here: searches read every name'; END $$"
    )


def indexes_missing(connection: BaseDatabaseWrapper) -> list[str]:
    """List the trigram indexes that are missing; empty on databases other than PostgreSQL."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()")
        existing = {name for (name,) in cursor.fetchall()}
    return [view.index for view in NAME_VIEWS if view.index not in existing]


class NameSearch(PostgresqlOperation):
    """Create the view and its indexes."""

    def __init__(self, view: NameView) -> None:
        self.view = view

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.view], {}

    def forwards(self, editor: BaseDatabaseSchemaEditor) -> None:
        for statement in (view_sql(self.view), *index_sql(self.view)):
            editor.execute(statement)

    def backwards(self, editor: BaseDatabaseSchemaEditor) -> None:
        editor.execute(f"DROP INDEX IF EXISTS {self.view.index}, {self.view.table}_labels")
        editor.execute(f"DROP VIEW IF EXISTS {self.view.view}")

    def describe(self) -> str:
        return f"Search of {self.view.table} by name"
