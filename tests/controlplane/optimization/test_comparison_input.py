"""Comparisons by adapters, traces and prices: what is asked for by REST, and the order that comes of it."""

from __future__ import annotations

import datetime as dt
import hashlib
import html
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from contracts.adapters.reference import ADAPTER_FILES, adapter_digest
from contracts.recipes.trace_rows import TracedRequest
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_publish
from controlplane.artifacts.store import artifact_store
from controlplane.billing.reports.instance_prices import instance_price_set
from controlplane.catalog.models import BaseModel
from controlplane.console.optimization.comparison_charts import adapters
from controlplane.errors import InvalidInputError
from controlplane.optimization.models import ComparisonRun, PromptSet
from controlplane.optimization.orders import ComparisonOrder
from controlplane.optimization.prompt_sets import prompts_read
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create
from optimizer.measurement.trace import read_trace
from tests.controlplane.optimization.measured import result

pytestmark = pytest.mark.django_db
API = "/api/v1"
FILES = dict(zip(ADAPTER_FILES, (b'{"r": 8}', b"weights"), strict=True))


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


@pytest.fixture
def version(tenant: Tenant, tiny_base: BaseModel) -> AdapterVersion:
    """A routed version, its files in the store."""
    sha256 = adapter_digest({name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()})
    for name, data in FILES.items():
        artifact_store().put(f"adapters/{sha256}/{name}", BytesIO(data), limit=1 << 20)
    adapter = Adapter.objects.create(tenant=tenant, name="bot", base_model=tiny_base)
    made = AdapterVersion.objects.create(
        adapter=adapter,
        number=1,
        status="ready",
        sha256=sha256,
        rank=8,
        uri=artifact_store().uri(f"adapters/{sha256}"),
    )
    adapter_publish(adapter=adapter)
    return made


def ask(client: Client, base: BaseModel, **more: Any) -> Any:
    body = {"base_model": base.name, "arms": [{}, {"name": "again"}], **more}
    return client.post(f"{API}/comparisons", json.dumps(body), content_type="application/json")


def ordered(folder: Path) -> dict[str, Any]:
    """Return the order that the only comparison gives to its subprocess."""
    ComparisonOrder(ComparisonRun.objects.get()).prepare(folder, lambda: None)
    order: dict[str, Any] = json.loads((folder / "order.json").read_text())
    return order


def test_adapters_come_with_their_files_and_prompts(
    staff: Client, tiny_base: BaseModel, version: AdapterVersion, prompts: PromptSet, tmp_path: Path
) -> None:
    asked = {"engine_name": version.engine_name, "prompts": prompts.pk}
    answer = ask(staff, tiny_base, adapters=[asked], load={"adapters": True})
    assert answer.status_code == 201, answer.content
    (kept,) = answer.json()["settings"]["adapters"]
    assert (kept["name"], kept["sha256"]) == ("bot", version.sha256)
    order = ordered(tmp_path)
    (told,) = order["adapters"]
    assert told["name"] == "bot"
    assert {name: (Path(told["folder"]) / name).read_bytes() for name in ADAPTER_FILES} == FILES
    assert len(Path(told["prompts"]).read_text().splitlines()) == 20
    assert order["load"] == {"adapters": True}
    assert staff.delete(f"{API}/prompt-sets/{prompts.pk}").status_code == 409, (
        "a comparison was asked with it"
    )


def test_the_bundled_set_is_offered_beside_uploaded_ones(
    staff: Client, tiny_base: BaseModel, bundled: PromptSet, prompts: PromptSet, tmp_path: Path
) -> None:
    listed = {row["sha256"]: row["bundled"] for row in staff.get(f"{API}/prompt-sets").json()["results"]}
    assert (listed[bundled.pk], listed[prompts.pk]) == (True, False)
    page = staff.get("/staff/comparisons/new", {"base_model": tiny_base.name}).content.decode()
    assert f'value="{bundled.pk}"' in page
    assert "Question answering, 500 to 1,000 tokens (bundled)" in page
    answer = ask(staff, tiny_base, prompts=bundled.pk)
    assert answer.status_code == 201, answer.content
    assert ordered(tmp_path)["load"] == {"prompt_set": "question_answering"}
    refused = staff.delete(f"{API}/prompt-sets/{bundled.pk}")
    assert (refused.status_code, "comes with Graftwork" in refused.content.decode()) == (409, True)
    assert prompts_read(prompts=bundled).count(b"\n") == bundled.lines == 64


def test_files_that_were_changed_are_not_measured(
    staff: Client, tiny_base: BaseModel, version: AdapterVersion, tmp_path: Path
) -> None:
    assert ask(staff, tiny_base, adapters=[{"engine_name": version.engine_name}]).status_code == 201
    artifact_store().remove_file(f"adapters/{version.sha256}/{ADAPTER_FILES[1]}")
    with pytest.raises(InvalidInputError, match="no longer in the artifact store"):
        ordered(tmp_path)
    artifact_store().put(f"adapters/{version.sha256}/{ADAPTER_FILES[1]}", BytesIO(b"others"), limit=1 << 20)
    with pytest.raises(InvalidInputError, match="were changed"):
        ordered(tmp_path)


def test_a_trace_and_prices_reach_the_order(staff: Client, tiny_base: BaseModel, tmp_path: Path) -> None:
    price = {"hour": 1.2, "discount": 0.1, "input": 0.2, "output": 0.6}
    answer = ask(
        staff,
        tiny_base,
        arms=[{}, {"name": "again", "price": {"hour": 0.9}}],
        price=price,
        load={"lengths": [[100, 20], [7, 3]], "prompt_scale": 2, "most_prompt": 64},
    )
    assert answer.status_code == 201, answer.content
    order = ordered(tmp_path)
    assert Path(order["load"]["trace"]).read_text().splitlines() == [
        "context_tokens,generated_tokens",
        "100,20",
        "7,3",
    ]
    assert (order["load"]["prompt_scale"], order["load"]["most_prompt"]) == (2, 64)
    assert (order["price"], order["arms"][1]["price"]) == (price, {"hour": 0.9})
    assert "price" not in order["arms"][0]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"load": {"trace": "bundled", "lengths": [[1, 1]]}}, 400, "exclude each other"),
        ({"load": {"trace": "mine.csv"}}, 400, "is not a valid choice"),
        ({"load": {"lengths": [[0, 4]]}}, 400, "row 1: lengths must be 1 or more"),
        ({"load": {"lengths": [[9, 4], [1.5, 4]]}}, 400, "row 2: lengths must be whole numbers"),
        ({"load": {"lengths": [[9, 4, 0.5], [9, 4, 0.4]]}}, 400, "row 2: arrival_s must be a number"),
        ({"load": {"lengths": [[9, 4, 0.5], [9, 4]]}}, 400, "row 2: has 2 numbers, the first has 3"),
        ({"load": {"lengths": [[9, 4]], "speeds": [1]}}, 400, "which this trace does not tell"),
        ({"load": {"speeds": [1]}}, 400, "give load.trace or load.lengths"),
        ({"load": {"trace": "bundled", "speeds": [1], "concurrency": [1]}}, 400, "exclude each other: give"),
        ({"load": {"trace": "bundled", "speeds": [0]}}, 400, "greater than or equal to 0.001"),
        ({"load": {"lengths": [[4]]}}, 400, "at least 2"),
        ({"load": {"adapters": True}}, 400, "requires at least one adapter"),
        ({"price": {"hour": 1, "input": 1}}, 400, "input and output go together"),
        ({"price": {}}, 400, "give either hour or instance_type"),
        ({"price": {"hour": 1, "instance_type": "ml.x"}}, 400, "give either hour or instance_type"),
        ({"price": {"hour": 1, "plan": "savings_plan_1y"}}, 400, "requires instance_type"),
        ({"price": {"instance_type": "ml.x", "currency": "EUR"}}, 400, "table of instance prices"),
        (
            {"price": {"instance_type": "ml.x", "plan": "savings_plan_1y", "discount": 0.1}},
            400,
            "excludes plan",
        ),
        ({"price": {"instance_type": "ml.none"}}, 400, "has no price"),
        ({"adapters": [{"engine_name": "no name"}]}, 400, "no name"),
        ({"adapters": [{"engine_name": "acme/other/1@" + "0" * 12}]}, 0, ""),
    ],
)
def test_what_does_not_fit_is_said(
    staff: Client, tiny_base: BaseModel, body: dict[str, Any], status: int, says: str
) -> None:
    answer = ask(staff, tiny_base, **body)
    assert answer.status_code in ((status,) if status else (400, 404)), answer.content
    assert says in answer.content.decode()
    assert not ComparisonRun.objects.exists()


def test_a_price_comes_from_the_table_by_type_and_plan(
    staff: Client, tiny_base: BaseModel, tmp_path: Path
) -> None:
    for plan, hour in (("on_demand", 2), ("savings_plan_1y", 1.5)):
        instance_price_set(
            instance_type="ml.x",
            region="us-east-1",
            plan=plan,
            effective_from=dt.date(2026, 1, 2),
            hour_nano=int(hour * 10**9),
            source=f"contract of {plan}",
        )
    price = {"instance_type": "ml.x", "plan": "savings_plan_1y", "input": 0.2, "output": 0.6}
    arms = [{}, {"name": "again", "price": {"instance_type": "ml.x", "discount": 0.1}}]
    answer = ask(staff, tiny_base, arms=arms, price=price)
    assert answer.status_code == 201, answer.content
    order = ordered(tmp_path)
    assert order["price"] == {"hour": 1.5, "currency": "USD", "input": 0.2, "output": 0.6}
    assert order["arms"][1]["price"] == {"hour": 2.0, "currency": "USD", "discount": 0.1}
    ComparisonRun.objects.update(status="done", result=result())
    rates = staff.get(f"{API}/comparisons/{answer.json()['id']}/result").json()["rates"]
    assert [(rate["arm"], rate["hour"], rate["source"]) for rate in rates] == [
        ("", 1.5, "contract of savings_plan_1y"),
        ("again", 2.0, "contract of on_demand"),
    ]
    page = staff.get(f"/staff/comparisons/{answer.json()['id']}/").content.decode()
    for text in ("ml.x in us-east-1, 1-year SageMaker Savings Plan, rate from 2 Jan 2026", "$1.50"):
        assert text in page


def test_the_form_takes_a_type_and_a_plan(staff: Client, tiny_base: BaseModel) -> None:
    form = {"base_model": tiny_base.name, "again": "on", "instance_type": "ml.x", "plan": "savings_plan_1y"}
    unknown = staff.post("/staff/comparisons/new", form)
    assert (unknown.status_code, "Savings Plan rate" in unknown.content.decode()) == (422, True)
    both = staff.post("/staff/comparisons/new", form | {"hour": "1"})
    assert (both.status_code, "give either hour or instance_type" in both.content.decode()) == (422, True)
    instance_price_set(
        instance_type="ml.x",
        region="us-east-1",
        plan="savings_plan_1y",
        effective_from=dt.date(2026, 1, 2),
        hour_nano=10**9,
        source="a contract",
    )
    assert staff.post("/staff/comparisons/new", form).status_code == 302
    assert ComparisonRun.objects.get().settings["price"]["rate"]["plan"] == "savings_plan_1y"


def test_the_form_takes_adapters_a_trace_and_list_prices(
    staff: Client, tiny_base: BaseModel, version: AdapterVersion
) -> None:
    form = {
        "base_model": tiny_base.name,
        "again": "on",
        "prompts": "trace",
        "adapters": version.engine_name,
        "hour": "1.2",
        "input": "0.2",
        "output": "0.6",
    }
    wrong = staff.post("/staff/comparisons/new", form | {"output": "much"})
    assert (wrong.status_code, "A valid number is required" in wrong.content.decode()) == (422, True)
    unknown = staff.post("/staff/comparisons/new", form | {"adapters": "acme/none"})
    assert unknown.status_code == 422
    assert staff.post("/staff/comparisons/new", form).status_code == 302
    settings = ComparisonRun.objects.get().settings
    assert settings["load"] == {"trace": "bundled", "most_prompt": 512, "adapters": True}
    assert settings["price"] == {"hour": 1.2, "currency": "USD", "input": 0.2, "output": 0.6}
    assert [item["name"] for item in settings["adapters"]] == ["bot"]


def test_arrivals_reach_the_order(staff: Client, tiny_base: BaseModel, tmp_path: Path) -> None:
    load = {"lengths": [[100, 20, 0], [7, 3, 0.25]], "speeds": [1, 2.5], "requests": 2}
    answer = ask(staff, tiny_base, load=load)
    assert answer.status_code == 201, answer.content
    asked = ordered(tmp_path)["load"]
    assert (asked["speeds"], asked["requests"]) == ([1.0, 2.5], 2)
    told = read_trace(Path(asked["trace"]), arrivals=True)
    assert told == [TracedRequest(100, 20, 0.0), TracedRequest(7, 3, 0.25)]


def test_the_form_takes_a_trace_of_ones_own_and_replays_it(staff: Client, tiny_base: BaseModel) -> None:
    form = {"base_model": tiny_base.name, "again": "on"}

    def send(text: str, **more: str) -> Any:
        trace = SimpleUploadedFile("day.csv", text.encode(), content_type="text/csv")
        return staff.post("/staff/comparisons/new", form | more | {"trace": trace})

    rows = "arrival_s,context_tokens,generated_tokens\n0,40,8\n1.5,9,4\n"
    for text, more, says in (
        (rows.replace("1.5", "-1"), {}, "day.csv, line 3: arrival_s must be a number"),
        (rows.replace("arrival_s,", "when,"), {"speeds": "1"}, "which this trace does not tell"),
        (rows, {"prompts": "trace"}, "choose either a trace file or prompts"),
        (rows, {"speeds": "fast"}, "A valid number is required"),
        (rows, {"speeds": "1", "concurrency": "4"}, "exclude each other: give one"),
        ("context_tokens,generated_tokens\n", {}, "a trace has 1 to 10000 requests, got 0"),
    ):
        answer = send(text, **more)
        assert (answer.status_code, says in html.unescape(answer.content.decode())) == (422, True), says
    without = staff.post("/staff/comparisons/new", form | {"speeds": "1"})
    assert (without.status_code, "requires a trace" in without.content.decode()) == (422, True)
    assert not ComparisonRun.objects.exists()
    assert send(rows, speeds="1 2.5").status_code == 302
    settings = ComparisonRun.objects.get().settings
    assert settings["load"] == {"lengths": [[40, 8, 0.0], [9, 4, 1.5]], "speeds": [1.0, 2.5]}
    bundled = staff.post("/staff/comparisons/new", form | {"prompts": "trace", "speeds": "4"})
    assert bundled.status_code == 302
    latest = ComparisonRun.objects.latest("pk").settings["load"]
    assert latest == {"trace": "bundled", "most_prompt": 512, "speeds": [4.0]}


def test_the_form_takes_a_scorer(staff: Client, tiny_base: BaseModel) -> None:
    form = {"base_model": tiny_base.name, "again": "on"}
    for scorer, right in (("json_schema", "[1]"), ("json_schema", "{"), ("regex", ""), ("guess", "x")):
        answer = staff.post("/staff/comparisons/new", form | {"scorer": scorer, "right": right})
        assert (answer.status_code, 'id="error-right"' in answer.content.decode()) == (422, True), scorer
    for scorer, right, asked in (
        ("json_schema", '{"type": "object"}', {"kind": "json_schema", "schema": {"type": "object"}}),
        ("regex", "^yes", {"kind": "regex", "pattern": "^yes"}),
        ("exact", "", {"kind": "exact"}),
    ):
        answer = staff.post("/staff/comparisons/new", form | {"scorer": scorer, "right": right})
        assert answer.status_code == 302
        assert ComparisonRun.objects.latest("pk").settings == {"quality": {"scorer": asked}}


def test_each_adapters_change_is_shown_by_arm(staff: Client, tiny_base: BaseModel) -> None:
    told = result()
    told["quality"]["prompts"] = {"base": 8, "bot": 8}
    told["quality"]["arms"]["int8"] |= {
        "bot": {
            "tokens": 90,
            "perplexity": 2.0,
            "perplexity_ratio": 1.034,
            "kl_mean": 0.01,
            "identical": 0.75,
        },
        "changes": {"bot: log perplexity": {"mean": 0.03, "verdict": "difference shown"}},
    }
    for figures in told["levels"][-1]["arms"].values():
        figures["blended"].append({"by": "list_price", "currency": "USD", "per_million": 0.3})
    (row,) = adapters(told)
    assert (row["adapter"], row["arm"], row["perplexity_ratio"]) == ("bot", "int8", 1.034)
    run = ComparisonRun.objects.create(
        base_model=tiny_base,
        machine="cpu",
        identity="4" * 64,
        status="done",
        result=told,
        arms=[{"name": name, "variant": ""} for name in ("original", "int8", "awq-int4")],
    )
    page = staff.get(f"/staff/comparisons/{run.pk}/").content.decode()
    assert "1.034×" in page
    assert "0.75" in page
    assert page.count("list price") == 3
