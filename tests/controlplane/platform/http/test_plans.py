"""PostgreSQL's plans for long lists: 15,000 adapters and 10,000 keys of a tenant, as the web role."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, models, transaction
from django.test import Client
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.catalog.models import BaseModel
from controlplane.platform.row_security.checks import check_trigrams
from controlplane.platform.row_security.grants import web_role_grant
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.services import api_key_create, tenant_create, user_create

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="these are PostgreSQL's plans"),
]
ADAPTERS: Final = 15_000
KEYS: Final = 10_000
ROLE: Final = f"graftwork_plans_{os.getpid()}"
LONG: Final = {model._meta.db_table for model in (Adapter, AdapterVersion, Alias, ApiKey)}


@pytest.fixture(scope="module")
def scale(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """A key of a tenant with all these, and another tenant with as many adapters; rolled back at the end."""
    with django_db_blocker.unblock(), transaction.atomic():
        base = BaseModel.objects.create(
            name="base",
            served_name="base",
            source="/",
            architecture="Llama",
            max_model_len=2048,
            dtype="f",
            modules={},
        )
        for slug in ("scale", "beside"):
            tenant = tenant_create(slug=slug, name=slug)
            _adapters(tenant, base)
        scale = Tenant.objects.get(pk="scale")
        user_create(email="dev@scale.test", password="long-enough-7", tenant=scale)
        key, text = api_key_create(tenant=scale, name="key", scopes=["manage"])
        _copies(key, KEYS, public_id="'k' || n", name="'Key ' || n", created_at="now() - n * interval '1 s'")
        # Its use is written down once a minute, which is none of the page's.
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=timezone.now())
        web_role_grant(name=ROLE)
        with connection.cursor() as cursor:
            # As autovacuum does within minutes: without figures of the tables every plan is a guess.
            cursor.execute("ANALYZE; SET CONSTRAINTS ALL IMMEDIATE")
        yield text
        transaction.set_rollback(True)


def _adapters(tenant: Tenant, base: BaseModel) -> None:
    adapter = Adapter.objects.create(tenant=tenant, name="bot", base_model=base, labels={"team": "x"})
    version = AdapterVersion.objects.create(adapter=adapter, number=1, status="ready", sha256="ab" * 32)
    alias = Alias.objects.create(adapter=adapter, name="prod", version=version)
    name = "'bot-' || lpad(n::text, 6, '0')"
    _copies(adapter, ADAPTERS, name=name, labels="jsonb_build_object('team', 't' || mod(n, 1000))")
    others = f"adapters_adapter AS other WHERE other.tenant_id = '{tenant.pk}' AND other.id <> {adapter.pk}"
    _copies(
        version,
        others,
        adapter_id="other.id",
        status="CASE mod(other.id, 1000) WHEN 0 THEN 'refused' ELSE 'ready' END",
    )
    _copies(alias, others, adapter_id="other.id")


def _copies(row: models.Model, of: int | str, **changed: str) -> None:
    """Rows like `row`, as many as a number `n` counts, or one for each row of a FROM clause."""
    table = row._meta.db_table
    columns = [str(field.column) for field in row._meta.concrete_fields if field.column != "id"]
    values = ", ".join(changed.get(column, f"{table}.{column}") for column in columns)
    source = f"generate_series(1, {of}) AS n WHERE true" if isinstance(of, int) else of
    key = "id" if hasattr(row, "id") else "public_id"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, {source}"
            f" AND {table}.{key} = %s",
            [row.pk],
        )


class Plans:
    """Plans of the queries that are sent inside, as PostgreSQL explains them."""

    def __init__(self) -> None:
        self.queries = 0
        self.whole: list[str] = []
        """Long tables that some query reads whole."""

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if sql.startswith("SELECT "):
            self.queries += 1
            # By a cursor of its own: one that reads in pieces takes nothing but the query itself.
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
                self._walk(cursor.fetchone()[0][0]["Plan"])
        return execute(sql, params, many, context)

    def _walk(self, node: dict[str, Any]) -> None:
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LONG:
            self.whole.append(node["Relation Name"])
        for child in node.get("Plans", ()):
            self._walk(child)


def read(text: str, path: str) -> tuple[Plans, Any]:
    """Read a page; return its query plans and its content."""
    plans = Plans()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {ROLE}")
        with connection.execute_wrapper(plans):
            answer = Client(headers={"Authorization": f"Bearer {text}"}).get(path)
        assert answer.status_code == 200, answer.content
        transaction.set_rollback(True)
    return plans, answer.json()


def _behind(position: str) -> str:
    return urlencode({"cursor": b64encode(f"p={position}".encode()).decode()})


LISTS = {
    "/adapters": (6, 50),
    f"/adapters?{_behind('bot-012500')}": (6, 50),
    "/adapters?search=BOT-01": (6, 50),
    "/adapters?search=014567": (6, 1),
    "/adapters?search=none-such": (3, 0),
    "/adapters?search=b": (6, 50),
    "/adapters?status=ready": (6, 50),
    "/adapters?status=refused": (6, 15),
    "/adapters?status=pending": (3, 0),
    "/adapters?label=team%3Dt7": (6, 15),
    "/adapters?label=team%3Dnone": (3, 0),
    "/adapters?label=team%3Dt567&search=bot-01&status=ready": (6, 5),
    "/adapters?deleted=true": (3, 0),
    "/adapters/bot-012345": (6, None),
    "/adapters/bot-012345/versions": (7, 1),
    "/adapters/bot-012345/aliases": (8, 1),
    "/keys": (3, 50),
    "/keys?search=key": (3, 50),
    "/keys?live=true": (3, 50),
    "/keys?project=default": (3, 50),
}
"""A list -> the queries of its page, and its rows. Two queries are the caller's; an adapter brings three."""


@pytest.mark.parametrize("path", LISTS)
def test_no_page_reads_a_long_table_whole(path: str, scale: str) -> None:
    queries, rows = LISTS[path]
    plans, page = read(scale, f"/api/v1{path}")
    assert plans.whole == []
    assert plans.queries <= queries
    if rows is not None:
        assert len(page["results"]) == rows


@pytest.mark.parametrize("path", ["", "adapters/", "adapters/?search=014567", "playground/", "keys/"])
def test_no_page_of_the_web_ui_reads_a_long_table_whole(path: str, scale: str) -> None:
    client = Client()
    client.force_login(User.objects.get(email="dev@scale.test"))
    plans = Plans()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {ROLE}")
        with connection.execute_wrapper(plans):
            page = client.get(f"/t/scale/{path}")
        transaction.set_rollback(True)
    assert page.status_code == 200
    assert plans.whole == []
    assert len(page.content) < 400_000


def test_a_search_meets_nothing_of_another_tenants(scale: str) -> None:
    """The view's own condition excludes them, whatever the list's filters say."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {ROLE}")
        for view in ("adapters_adapter_names", "tenants_apikey_names"):
            for stated, found in (("scale", {"scale"}), ("", set()), ("nobody", set())):
                cursor.execute("SELECT set_config('graftwork.tenant', %s, true)", [stated])
                cursor.execute(f"SELECT DISTINCT tenant_id FROM {view}")
                assert {tenant for (tenant,) in cursor.fetchall()} == found, (view, stated)
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "statement", ["INSERT INTO {} (tenant_id, name) VALUES ('beside', 'x')", "UPDATE {} SET name = 'x'"]
)
def test_nobody_writes_into_a_search(statement: str, scale: str) -> None:
    for view in ("adapters_adapter_names", "tenants_apikey_names"):
        with pytest.raises(Exception, match=r"cannot (insert into|update) view"), transaction.atomic():
            connection.cursor().execute(statement.format(view))


def test_where_the_extension_may_not_be_made_searches_still_find(scale: str) -> None:
    """A database owner who may not create extensions gets no index, and a warning."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DROP EXTENSION pg_trgm CASCADE")
        (warning,) = check_trigrams(databases=["default"])
        assert "search_indexes" in str(warning.hint)
        cursor.execute(f"GRANT CREATE ON SCHEMA public TO {ROLE}")
        for table in ("adapters_adapter", "tenants_apikey"):
            cursor.execute(f"ALTER TABLE {table} OWNER TO {ROLE}")
        cursor.execute(f"SET LOCAL ROLE {ROLE}")
        with pytest.raises(CommandError, match="pg_trgm"):
            call_command("search_indexes")
        cursor.execute("RESET ROLE")
        for table in ("adapters_adapter", "tenants_apikey"):
            cursor.execute(f"ALTER TABLE {table} OWNER TO CURRENT_USER")
        web_role_grant(name=ROLE)  # the tables' new owner lost the grants
        _, page = read(scale, "/api/v1/adapters?search=014567")
        assert [row["name"] for row in page["results"]] == ["bot-014567"]
        call_command("search_indexes")
        assert check_trigrams(databases=["default"]) == []
        transaction.set_rollback(True)


def test_plans_are_seen(scale: str) -> None:
    """The walk above finds a bad plan."""
    plans = Plans()
    with connection.execute_wrapper(plans):
        assert Adapter.objects.filter(notes__contains="nobody wrote this").count() == 0
    assert plans.whole == ["adapters_adapter"]
