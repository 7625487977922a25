"""Session keys: in cookies and in no table."""

from __future__ import annotations

import datetime as dt

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from controlplane.tenants.models import Tenant, User
from controlplane.tenants.services import user_create
from controlplane.tenants.sessions import SessionStore, stored_key

pytestmark = pytest.mark.django_db
PASSWORD = "correct-horse-battery"


@pytest.fixture
def user(tenant: Tenant) -> User:
    return user_create(email="ada@acme.test", password=PASSWORD, tenant=tenant)


def cookie(client: Client) -> str:
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def logged_in(client: Client) -> bool:
    return client.get("/t/acme/").status_code == 200


def with_cookie(value: str) -> Client:
    client = Client()
    client.cookies[settings.SESSION_COOKIE_NAME] = value
    return client


def test_what_the_table_holds_opens_nothing(user: User) -> None:
    client = Client()
    client.force_login(user)
    (row,) = Session.objects.all()
    key = cookie(client)
    assert row.session_key == stored_key(key)
    assert key not in f"{row.session_key}{row.session_data}{row.get_decoded()}"
    assert logged_in(with_cookie(key))
    assert not logged_in(with_cookie(row.session_key))
    assert not logged_in(with_cookie(""))


def test_a_login_by_the_form_renews_the_key_and_a_logout_ends_the_session(user: User) -> None:
    client = Client()
    before = client.session
    before["next"] = "x"
    before.save()
    key_before = str(before.session_key)
    client.cookies[settings.SESSION_COOKIE_NAME] = key_before
    assert client.post("/login", {"login": user.email, "password": PASSWORD}).status_code == 302
    key = cookie(client)
    assert key != key_before
    assert not SessionStore().exists(key_before)
    assert [row.session_key for row in Session.objects.all()] == [stored_key(key)]
    client.post("/logout")
    assert not Session.objects.exists()
    assert not logged_in(with_cookie(key))


def test_an_expired_session_is_none_and_is_cleared(user: User) -> None:
    client = Client()
    client.force_login(user)
    Session.objects.update(expire_date=timezone.now() - dt.timedelta(seconds=1))
    assert not logged_in(client)
    call_command("clearsessions")
    assert not Session.objects.exists()


def test_one_that_was_deleted_is_gone() -> None:
    store = SessionStore()
    store["a"] = 1
    store.save()
    same = SessionStore(store.session_key)
    assert same["a"] == 1
    same.delete()
    assert SessionStore(store.session_key).load() == {}
    assert not store.exists(str(store.session_key))


@pytest.mark.django_db(transaction=True)
def test_the_asynchronous_half_does_the_same() -> None:
    async def walk() -> None:
        store = SessionStore()
        await store.aset("a", 1)
        await store.asave()
        key = store.session_key
        assert key is not None
        assert await store.aexists(key)
        assert await SessionStore(key).aget("a") == 1
        assert [row.session_key async for row in Session.objects.all()] == [stored_key(key)]
        await SessionStore(key).adelete()
        assert not await store.aexists(key)
        await SessionStore().adelete()

    async_to_sync(walk)()
