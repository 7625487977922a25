"""Personal access tokens of staff: what they open, what they do not, and who may make them."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from controlplane.errors import ConflictError, ForbiddenError, InvalidInputError
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import StaffToken, Tenant, User
from controlplane.tenants.services import staff_tokens, user_create
from controlplane.tenants.services.staff_tokens import staff_token_create

pytestmark = pytest.mark.django_db
URL = "/api/v1/staff-tokens"


def in_days(count: float) -> dt.datetime:
    return timezone.now() + dt.timedelta(days=count)


@pytest.fixture
def person() -> User:
    return user_create(email="operator@graft.test", password="long-enough-7", is_staff=True)


@pytest.fixture
def session(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def token_of(user: User, scope: str = "write", days: float = 9) -> str:
    return staff_token_create(user=user, name="script", scope=scope, expires_at=in_days(days))[1]


def call(text: str, method: str = "GET", path: str = "/api/v1/targets", body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {text}"}
    return Client().generic(
        method, path, b"" if body is None else body, content_type="application/json", headers=headers
    )


def test_a_token_is_created_used_listed_and_revoked(session: Client, person: User) -> None:
    body = {"name": "nightly", "scope": "write", "expires_at": in_days(30).isoformat()}
    made = session.post(URL, body, content_type="application/json")
    assert made.status_code == 201, made.content
    text = made.json()["token"]
    assert text.startswith(f"gs_{made.json()['public_id']}_")
    row = StaffToken.objects.get()
    assert text.rpartition("_")[2] not in str(vars(row)), "only the digest is stored"
    assert row.last_used_at is None
    assert call(text).status_code == 200
    (listed,) = session.get(URL).json()["results"]
    assert listed["last_used_at"]
    assert "token" not in listed
    one = f"{URL}/{listed['public_id']}"
    etag = session.get(one)["ETag"]
    assert session.delete(one, headers={"If-Match": etag}).status_code == 204
    assert call(text).status_code == 401
    actions = AuditRecord.objects.filter(target_type__endswith="stafftoken").values_list("action", flat=True)
    assert sorted(actions) == ["staff_token.create", "staff_token.revoke"]


def test_its_changes_are_recorded_as_the_persons(person: User) -> None:
    answer = call(token_of(person), "POST", "/api/v1/targets", '{"name": "here", "kind": "local"}')
    assert answer.status_code == 201, answer.content
    record = AuditRecord.objects.get(action="target.create")
    assert (record.actor_kind, record.actor_name) == ("staff", person.email)


def test_scope_read_changes_nothing_on_any_route(person: User) -> None:
    text = token_of(person, "read")
    assert call(text).status_code == 200
    for path in ("/api/v1/targets", "/api/v1/keys", "/api/v1/adapter-checks"):
        answer = call(text, "POST", path, "{}")
        assert answer.status_code == 403, path
        assert "scope read" in answer.content.decode()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_token_makes_lists_and_revokes_no_tokens(person: User, method: str) -> None:
    text = token_of(person)
    path = URL if method != "DELETE" else f"{URL}/{StaffToken.objects.get().pk}"
    answer = call(text, method, path, "{}")
    assert answer.status_code == 403
    assert "not tokens" in answer.content.decode()


def test_people_see_their_own_tokens_alone(session: Client) -> None:
    other = user_create(email="other@graft.test", password="long-enough-7", is_staff=True)
    token_of(other)
    assert session.get(URL).json()["results"] == []
    assert session.get(f"{URL}/{StaffToken.objects.get().pk}").status_code == 404


def test_members_of_tenants_get_none(tenant: Tenant) -> None:
    member = user_create(email="member@graft.test", password="long-enough-7", tenant=tenant)
    client = Client()
    client.force_login(member)
    assert client.get(URL).status_code == 403
    with pytest.raises(ForbiddenError, match="only active staff"):
        token_of(member)


@pytest.mark.parametrize("change", [{"is_staff": False}, {"is_active": False}])
def test_a_token_is_worth_what_its_person_is(person: User, change: dict[str, bool]) -> None:
    text = token_of(person)
    User.objects.filter(pk=person.pk).update(**change)
    assert call(text).status_code == 401


def test_wrong_and_expired_tokens_are_refused(person: User) -> None:
    text = token_of(person)
    for wrong in (text[:-1] + ("0" if text[-1] != "0" else "1"), "gs_", "gs_x_y", "gs_" + "é" * 40):
        assert call(wrong.encode().decode("latin-1")).status_code == 401
    StaffToken.objects.update(expires_at=timezone.now())
    assert call(text).status_code == 401


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": " "}, "name"),
        ({"scope": "root"}, "scope"),
        ({"expires_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "expires_at"),
        ({"expires_at": dt.datetime(9999, 1, 1, tzinfo=dt.UTC)}, "expires_at"),
    ],
)
def test_bad_input_is_refused_by_name(person: User, values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as told:
        staff_token_create(user=person, **{"name": "a", "scope": "read", "expires_at": in_days(1), **values})
    assert told.value.field == field


def test_a_person_has_a_bounded_number_of_tokens(person: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staff_tokens, "MOST", 1)
    token_of(person)
    with pytest.raises(ConflictError, match="revoke one first"):
        token_of(person)
    StaffToken.objects.update(revoked_at=timezone.now())
    token_of(person)


def test_the_command_line_makes_a_token(person: User) -> None:
    out = io.StringIO()
    call_command("staff_token", person.email, name="cron", by="Ada", stdout=out)
    assert call(out.getvalue().strip()).status_code == 200
    assert StaffToken.objects.get().scope == "read"
    assert AuditRecord.objects.get(action="staff_token.create").actor_name == "Ada"
    with pytest.raises(CommandError, match="there is no user"):
        call_command("staff_token", "nobody@graft.test", name="cron", by="Ada")
    with pytest.raises(CommandError, match="within 366 days"):
        call_command("staff_token", person.email, name="cron", by="Ada", days=999)
