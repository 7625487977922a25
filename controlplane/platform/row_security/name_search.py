"""Search by part of a name, and by labels, under row policies.

PostgreSQL shows a row to no operator that might tell of it (LIKE and @> are such) before the row's policy has
let it through, so under a policy such a search reads every row, whatever index there is. A view that belongs
to the tables' owner states the policy's condition itself; in it the planner may begin with an index (ADR 28).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db import connection, migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from django.db.models import Model, QuerySet, TextField
from django.db.models.expressions import RawSQL
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from controlplane.platform.row_security.policies import TENANT

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class NameView:
    """A table whose rows are searched by name.

    Attributes:
        table, key: the table, which has a column `tenant_id`, and its primary key.
        column: what is searched.
        name: the column in one case, as SQL: the column itself where it has one case only.
        fold: the SQL function that brings what is searched for to that case.
        labels: a column of JSON, text to text, that is searched too; '' for none.
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
    """Those of `rows`, in the table of `view`, whose name has `text` in it, in whatever case.

    Three characters or more are looked up in the index of trigrams, where there is one.
    """
    if connection.vendor != "postgresql":
        return rows.filter(**{f"{view.column}__icontains": text})
    pattern = f"%{connection.ops.prep_for_like_query(text)}%"
    sql = f"SELECT key FROM {view.view} WHERE name LIKE {view.fold}(%s)"  # noqa: S608  # names of ours
    return rows.filter(pk__in=RawSQL(sql, (pattern,)))  # noqa: S611  # its values are parameters


def labelled(rows: QuerySet[M], view: NameView, labels: Mapping[str, str]) -> QuerySet[M]:
    """Those of `rows`, in the table of `view`, that have every one of `labels`."""
    if connection.vendor == "postgresql":
        sql = f"SELECT key FROM {view.view} WHERE labels @> %s::jsonb"  # noqa: S608  # names of ours
        return rows.filter(pk__in=RawSQL(sql, (json.dumps(dict(labels)),)))  # noqa: S611  # the same
    for index, (key, value) in enumerate(labels.items()):
        # The key as it is: in a keyword of `filter` its underscores would mean something.
        text_of = Cast(KeyTextTransform(key, view.labels), TextField())
        rows = rows.alias(**{f"label_{index}": text_of}).filter(**{f"label_{index}": value})
    return rows


def view_sql(view: NameView) -> str:
    """Its definition. Two sources, though one would do: into such a view nobody can write."""
    labels = f", named.{view.labels} AS labels" if view.labels else ""
    return (
        f"CREATE OR REPLACE VIEW {view.view} AS"  # noqa: S608  # names of ours
        f" SELECT named.{view.key} AS key, named.tenant_id, {view.name} AS name{labels}"
        f" FROM {view.table} AS named, (SELECT 1) AS one"
        f" WHERE NOT (SELECT row_security_active('{view.table}'))"
        f" OR named.tenant_id = (SELECT {TENANT}) OR (SELECT {TENANT}) = '*'"
    )


def index_sql(view: NameView) -> Iterator[str]:
    """Make the indexes: of labels, and of trigrams, or a notice where that extension is not to be had.

    Without `fastupdate`: a name is written rarely, and each search would read those not sorted in yet.
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
    """Names of the indexes of trigrams that are not there, though the database could have them."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()")
        there = {name for (name,) in cursor.fetchall()}
    return [view.index for view in NAME_VIEWS if view.index not in there]


class NameSearch(migrations.operations.base.Operation):
    """Makes the view and, where pg_trgm may be installed, the index; nothing on other databases."""

    reversible = True
    atomic = True

    def __init__(self, view: NameView) -> None:
        self.view = view

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.view], {}

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        pass

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            for statement in (view_sql(self.view), *index_sql(self.view)):
                schema_editor.execute(statement)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            schema_editor.execute(f"DROP INDEX IF EXISTS {self.view.index}, {self.view.table}_labels")
            schema_editor.execute(f"DROP VIEW IF EXISTS {self.view.view}")

    def describe(self) -> str:
        return f"Search of {self.view.table} by name"
