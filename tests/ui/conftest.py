"""One world, one server and one browser for all tests of the web UI: the pages are many."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client, TransactionTestCase, override_settings
from django.test.testcases import LiveServerThread
from playwright.sync_api import Browser, BrowserContext, Page
from pytest_django.plugin import DjangoDbBlocker

from controlplane.platform.celery import app as celery
from tests.conftest import CHROMIUM, empty_tables
from tests.controlplane.world import World
from tests.ui.filled import world_fill
from tests.ui.pleasant import world_furnish
from tests.ui.watch import Watch

FAST_HASH = ["django.contrib.auth.hashers.MD5PasswordHasher"]
WAIT_MS = 60_000


@pytest.fixture(scope="package")
def configured(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Settings with this session's Valkey and folders; the import root."""
    root = tmp_path_factory.mktemp("import")
    store = tmp_path_factory.mktemp("artifacts")
    own = dataclasses.replace(
        settings.GRAFTWORK,
        redis_url=redis_server,
        artifact_store=f"file://{store}",
        import_roots=(root,),
        sign_up="open",
    )
    caches = {"default": settings.CACHES["default"] | {"LOCATION": redis_server}}
    broker, celery.conf.broker_url = celery.conf.broker_url, redis_server
    with override_settings(
        GRAFTWORK=own,
        CACHES=caches,
        PASSWORD_HASHERS=FAST_HASH,
        ALLOWED_HOSTS=["127.0.0.1", "testserver"],
        EMAIL_BACKEND="django.core.mail.backends.locmem.EmailBackend",
    ):
        yield root
    celery.conf.broker_url = broker


@pytest.fixture(scope="package")
def world(
    configured: Path,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """The filled world; its rows outlive each test, and go with the last. For pictures a pleasant one."""
    fill = world_furnish if os.environ.get("GRAFTWORK_TEST_PICTURES") else world_fill
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: None)
        yield fill(tmp_path_factory.mktemp("world"))
        empty_tables()


class _Pages(WSGIHandler):
    """Serves static files as the product does, compressed by whitenoise, not by Django's handler."""

    def __init__(self, handler: WSGIHandler) -> None:
        super().__init__()


@pytest.fixture(scope="package")
def server(world: World) -> Iterator[str]:
    """URL of the control plane's pages, served from this process."""
    thread = LiveServerThread("127.0.0.1", static_handler=_Pages)
    thread.daemon = True
    thread.start()
    thread.is_ready.wait()
    if thread.error:
        raise thread.error
    yield f"http://{thread.host}:{thread.port}"
    thread.terminate()


@pytest.fixture(scope="package")
def browser(server: str) -> Iterator[Browser]:
    """Chromium until the last of these tests: pages stay open between them."""
    yield CHROMIUM.browser()
    CHROMIUM.close()


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, server: str) -> Iterator[Visit]:
    """`visit(client, path, **options)`: a page in a browser that has the test client's session.

    At the end no page may have met a script error, broken the policy or asked another server.
    """
    watch = Watch(server)
    with ExitStack() as stack:

        def visit(client: Client | None, path: str, **options: Any) -> Page:
            context = browser.new_context(base_url=server, **options)
            stack.callback(context.close)
            context.set_default_timeout(WAIT_MS)
            log_in(context, client, server)
            page = watch.page(context)
            page.goto(path)
            return page

        yield visit
    assert watch.faults == []


def log_in(context: BrowserContext, client: Client | None, server: str) -> None:
    """Gives a browser the session that a test client has."""
    if client is None:
        return
    name = settings.SESSION_COOKIE_NAME
    value = client.cookies[name].value
    context.add_cookies([{"name": name, "value": value, "url": server}])
