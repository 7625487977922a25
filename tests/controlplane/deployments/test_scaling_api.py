"""Scaling policies by REST and on the page: valid and refused input, and the policy that gateways get."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.catalog.models import BaseModel
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Deployment, Scaling
from controlplane.deployments.services import deployment_create, deployment_remove, deployment_update
from controlplane.deployments.targets.services import target_create
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.services import user_create
from tests.controlplane.deployments.test_api import CLOUD, create

pytestmark = pytest.mark.django_db
PATH = "/api/v1/deployments/tiny/scaling"
PAGE = "/staff/deployments/tiny/scaling"


@pytest.fixture
def staff() -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


@pytest.fixture
def deployment(tiny: BaseModel) -> Deployment:
    target = target_create(name="here", kind="local")
    return deployment_create(name="tiny", target=target, base_model=tiny, min_copies=0, max_copies=4)


def put(client: Client, path: str = PATH, **body: Any) -> Any:
    return client.put(path, body, content_type="application/json")


def held(base: BaseModel) -> int:
    row = RouteEntryRow.objects.filter(path=f"bases/{base.name}").first()
    return 0 if row is None else int(row.entry["hold_seconds"])


def test_a_first_policy_begins_with_the_copies_that_there_are(staff: Client, deployment: Deployment) -> None:
    deployment_update(deployment=deployment, min_copies=3)
    assert put(staff, target=4, min_copies=0).json()["copies"] == 3
    assert desired_of(Deployment.objects.get()).min_copies == 3, "until tracking has seen that fewer will do"
    assert put(staff, target=5, min_copies=0, max_copies=2).json()["copies"] == 3
    assert desired_of(Deployment.objects.get()).min_copies == 2, "the bounds are kept at once"
    assert staff.delete(PATH).status_code == 204
    assert put(staff, target=4, min_copies=1).json()["copies"] == 1


def test_a_policy_is_put_read_and_taken_away(staff: Client, deployment: Deployment, tiny: BaseModel) -> None:
    assert staff.get(PATH).status_code == 404
    assert held(tiny) == 0
    answer = put(staff, target=4, hold_seconds=30, max_copies=6)
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert (told["target"], told["min_now"], told["max_now"], told["copies"]) == (4.0, 0, 6, 0)
    assert told["in_after"] == 900
    deployment.refresh_from_db()
    assert (deployment.max_copies, deployment.generation) == (6, 3)
    assert held(tiny) == 30, "gateways may hold what finds no copy"
    assert desired_of(deployment).min_copies == 0
    assert AuditRecord.objects.filter(action="deployment.scaling", target_name="tiny").exists()
    tag = staff.get(PATH)["ETag"]
    assert put(staff, target=4, hold_seconds=30)["ETag"] == tag
    stale = staff.put(PATH, {"target": 5}, content_type="application/json", headers={"If-Match": '"x"'})
    assert stale.status_code == 412

    assert put(staff, target=4, min_copies=1).status_code == 200
    assert held(tiny) == 0, "there is always a copy"
    assert desired_of(Deployment.objects.get()).min_copies == 1
    assert staff.delete(PATH).status_code == 204
    assert staff.delete(PATH).status_code == 404
    assert staff.get(PATH).status_code == 404
    assert Scaling.objects.get().policy is None
    assert desired_of(Deployment.objects.get()).min_copies == 1


def test_nobody_waits_for_what_is_being_removed(
    staff: Client, deployment: Deployment, tiny: BaseModel
) -> None:
    put(staff, target=4)
    assert held(tiny) == 60
    deployment_remove(deployment=deployment)
    assert held(tiny) == 0
    assert put(staff, target=4).status_code == 409


@pytest.mark.parametrize(
    ("body", "attr", "words"),
    [
        ({}, "target", "required"),
        ({"target": 4, "timezone": "Mars/Olympus"}, "timezone", "IANA"),
        ({"target": 4, "max_copies": 17}, "max_copies", "a host runs at most 16 copies"),
        ({"target": 4, "release": "CONSOLIDATION"}, "release", "of kind sagemaker"),
        ({"target": 4, "min_copies": 5}, "min_copies", "min_copies <= max_copies"),
    ],
)
def test_what_is_wrong_is_named(
    staff: Client, deployment: Deployment, body: dict[str, Any], attr: str, words: str
) -> None:
    answer = put(staff, **body)
    assert answer.status_code == 400, answer.content
    (error,) = answer.json()["errors"]
    assert error["attr"] == attr
    assert words in error["detail"]
    assert not Scaling.objects.exists()


def test_what_aws_decides_cannot_be_set_there(staff: Client, tiny: BaseModel) -> None:
    target_create(name="cloud", **CLOUD)
    assert create(staff, tiny, max_copies=4).status_code == 201
    path = "/api/v1/deployments/llama/scaling"
    answer = put(staff, path, target=4, in_after=60)
    assert "in_after must be 900 s in targets of kind sagemaker" in answer.json()["errors"][0]["detail"]
    assert put(staff, path, target=4, routing="RANDOM").status_code == 200
    assert staff.get(path).json()["copies"] is None


def test_bases_of_one_endpoint_ask_for_one_routing(staff: Client, tiny: BaseModel) -> None:
    target_create(name="cloud", **CLOUD)
    for name in ("one", "two"):
        assert create(staff, tiny, name=name, endpoint="shared").status_code == 201
    assert put(staff, "/api/v1/deployments/one/scaling", target=4, routing="RANDOM").status_code == 200
    answer = put(staff, "/api/v1/deployments/two/scaling", target=4)
    assert answer.status_code == 409
    assert "shared with one, whose routing is RANDOM" in answer.json()["errors"][0]["detail"]


def test_the_page_sets_and_ends_a_policy(staff: Client, deployment: Deployment) -> None:
    page = "/staff/deployments/tiny/"
    assert "fixed number of copies" in staff.get(page).text
    form = {
        "metric": "concurrency",
        "target": "4",
        "timezone": "Europe/Berlin",
        "schedule": "night 20:00 mon,tue 0-2\nday 08:00 mon,tue 1-4",
        "hold_seconds": "20",
    }
    assert staff.post(PAGE, form | {"target": "four"}).status_code == 422
    wrong = staff.post(PAGE, form | {"schedule": "at night none"})
    assert "a line of the schedule is like" in wrong.text
    assert staff.post(PAGE, form).status_code == 302
    shown = staff.get(page).text
    assert "night 20:00 mon,tue 0-2" in shown
    assert "copies now" in shown
    assert staff.get(PATH).json()["schedule"][0]["days"] == ["mon", "tue"]
    assert staff.post(PAGE, {"off": "1"}).status_code == 302
    assert "fixed number of copies" in staff.get(page).text


def test_gateways_learn_when_only_the_bounds_change(
    staff: Client, deployment: Deployment, tiny: BaseModel
) -> None:
    put(staff, target=4, min_copies=1)
    assert held(tiny) == 0
    put(staff, target=4, min_copies=0)
    assert held(tiny) == 60, "the policy's JSON is the same, and may lead to zero now"

    def patch(**body: int) -> Any:
        return staff.patch("/api/v1/deployments/tiny", body, content_type="application/json")

    assert patch(min_copies=1).status_code == 200
    assert held(tiny) == 0
    assert patch(min_copies=0).status_code == 200
    assert held(tiny) == 60
    answer = patch(max_copies=17)
    assert "a host runs at most 16 copies" in answer.json()["errors"][0]["detail"]


def test_what_was_measured_by_another_metric_counts_no_more(staff: Client, deployment: Deployment) -> None:
    put(staff, target=4)
    Scaling.objects.update(state={"low_since": 1.0})
    put(staff, target=4, hold_seconds=9)
    assert Scaling.objects.get().state == {"low_since": 1.0}
    put(staff, target=4, metric="invocations")
    assert Scaling.objects.get().state == {}


def test_an_endpoint_follows_the_policy_of_one_that_shares_it(staff: Client, tiny: BaseModel) -> None:
    target_create(name="cloud", **CLOUD)
    for name in ("one", "two"):
        assert create(staff, tiny, name=name, endpoint="shared").status_code == 201
    put(staff, "/api/v1/deployments/one/scaling", target=4, routing="RANDOM")
    for name in ("one", "two"):
        policy = desired_of(Deployment.objects.get(name=name)).endpoint_scaling
        assert policy is not None
        assert policy.routing == "RANDOM", "two that differed would rewrite it in turn"
    assert desired_of(Deployment.objects.get(name="two")).scaling is None
    deployment_remove(deployment=Deployment.objects.get(name="one"))
    assert desired_of(Deployment.objects.get(name="two")).endpoint_scaling is None
