"""Known mistakes of other gateways and servers: one rule each, with the tests that hold it here."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest

from contracts.keys import KeyRoute
from gateway.completions import PATHS
from gateway.errors import InvalidApiKey
from gateway.routing import authenticate
from tests.conftest import ROOT
from tests.gateway.conftest import ACME, FLEET_TOKEN, ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

HERE: Final = "gateway/test_peers_failures.py"
RULES: Final[Mapping[str, tuple[str, ...]]] = {
    # vllm#42125, vllm#47724, prime-rl#3358
    "an engine name is its content's; aliases exist in the gateway alone; no adapter shadows a base": (
        "worker_engine/test_server.py::test_adapter_references_are_held_to_their_word",
        "worker_engine/test_prefix_cache.py::test_a_hash_is_over_salt_adapter_and_all_tokens_before",
        "gateway/test_app.py::test_the_worker_gets_the_whole_adapter_and_nothing_of_the_clients",
        "gateway/routing/test_names.py::test_names_of_two_tenants_never_meet",
        "controlplane/adapters/test_races.py::test_a_name_is_never_both_a_base_model_and_an_adapter",
    ),
    # CVE-2025-46570, CVE-2026-105756
    "each tenant has a hex cache salt, and the client's is not taken": (
        "gateway/test_app.py::test_a_worker_is_told_the_tenant_and_its_salt",
        "gateway/test_app.py::test_an_unknown_parameter",
        "controlplane/tenants/test_tenants.py::test_each_tenant_has_a_salt_of_its_own",
        "worker_engine/test_tenants.py::test_a_bad_field_is_named",
    ),
    # CVE-2026-105755
    "the gateway makes the request id": (
        "gateway/test_endpoints.py::test_a_client_does_not_choose_the_request_id",
    ),
    # CVE-2026-34756, CVE-2026-116180, CVE-2025-29770, CVE-2025-62164
    "parameters pass an allow-list with bounds": (
        "gateway/api/test_schema.py::test_an_unknown_parameter_is_named",
        "gateway/api/test_schema.py::test_a_value_out_of_bounds_names_its_parameter",
        "gateway/api/test_schema.py::test_what_passes_can_be_sent_on",
        "gateway/api/test_schema.py::test_prompts_times_choices_are_bounded",
        "gateway/api/responses/test_request.py::test_what_is_not_served_is_refused_by_name",
        "worker_engine/text/test_structured_output.py::test_a_bomb_is_refused_in_bounded_time",
    ),
    # CVE-2024-6587
    "no client names an upstream's URL": (f"{HERE}::test_no_parameter_names_an_upstream",),
    # CVE-2026-42208, CVE-2026-35030
    "a key is looked up by its id and compared whole, as a digest": (
        f"{HERE}::test_keys_that_begin_alike_are_different_keys",
        f"{HERE}::test_a_key_is_data",
        "gateway/routing/test_names.py::test_a_wrong_key_is_refused",
        "gateway/routing/test_names.py::test_the_entry_of_nobody_opens_nothing",
        "controlplane/tenants/test_keys.py::test_a_key_needs_its_own_secret_and_the_prefix",
    ),
    # CVE-2026-35029, CVE-2026-47101, CVE-2026-47102
    "every route states its role, and two tenants walk them all": (
        "controlplane/test_isolation.py::test_every_route_and_method_states_the_permission_that_stands_here",
        "controlplane/test_isolation.py::test_every_page_states_the_permission_that_stands_here",
        "controlplane/test_isolation.py::test_lists_hold_only_ones_own",
        "gateway/test_app.py::test_unknown_and_another_tenants_model",
        "gateway/test_multi_adapter.py::test_every_adapter_must_be_the_tenants_and_of_one_base_model",
        "gateway/idempotency/test_http.py::test_keys_belong_to_their_caller_and_endpoint",
    ),
    # CVE-2026-114612
    "each purpose has a secret of its own": (
        "gateway/idempotency/test_seal.py::test_each_purpose_has_a_secret_of_its_own",
        "gateway/test_operation.py::test_an_openai_server_gets_its_own_key_and_the_adapter_by_name",
        "deploy/test_images.py::test_secrets_are_made_once_and_for_their_owner",
    ),
    # CVE-2026-22807
    "adapters are safetensors; nothing of a checkpoint is run": (
        "controlplane/adapters/test_validation.py::test_other_files_are_refused_at_once",
        "controlplane/adapters/test_s3.py::test_missing_objects_pickles_and_buckets_are_named",
        "worker_engine/test_server.py::test_a_bad_adapter_is_refused_while_others_are_served",
        "worker_engine/checkpoint/test_folder.py::test_no_weights",
        "worker_engine/checkpoint/test_folder.py::test_code_beside_the_weights_is_never_run",
    ),
    # TorchServe CVE-2023-43654, Ray CVE-2023-48023
    "artifacts come by known schemes, from public addresses that are judged where they are connected to": (
        "controlplane/adapters/test_validation.py::test_a_uri_is_imported_only_from_an_import_root",
        "controlplane/adapters/test_s3.py::test_other_buckets_and_folders_are_closed",
        "controlplane/adapters/test_tenant_buckets.py"
        "::test_an_endpoint_inside_is_refused_when_it_is_written_and_when_it_is_called",
        "controlplane/adapters/test_hub.py::test_a_hub_that_redirects_inwards_is_refused",
        "controlplane/platform/http/test_outgoing.py::test_addresses_that_are_not_public",
        "controlplane/platform/http/test_outgoing.py::test_a_name_is_resolved_once_and_connected_to_where_it_was_judged",
        "controlplane/platform/http/test_outgoing.py::test_one_address_among_public_ones_refuses_the_name",
        "controlplane/platform/http/test_outgoing.py::test_redirects_are_judged_as_the_first_request_is",
        "controlplane/webhooks/test_deliveries.py::test_what_is_no_public_address_is_not_reached",
    ),
    # MLflow CVE-2023-1177
    "archives hold no links and no way out, and neither they nor files exceed size, number and ratio": (
        "controlplane/adapters/test_hostile_archives.py::test_uploaded_it_is_refused_at_once",
        "controlplane/adapters/test_hostile_archives.py::test_imported_it_is_refused_by_the_validation",
        "controlplane/adapters/test_validation.py::test_other_files_are_refused_at_once",
        "controlplane/adapters/test_s3.py::test_a_stream_beyond_its_limit_leaves_no_part",
        "controlplane/artifacts/uploads/test_uploads.py::test_bytes_that_do_not_fit_are_refused_and_not_kept",
        "controlplane/test_body_limit.py::test_the_application_is_bounded",
    ),
    # Ray CVE-2023-48022
    "no worker and no administration without credentials": (
        "worker_engine/http/test_openapi.py::test_nothing_is_served_without_the_fleets_token",
        "controlplane/test_isolation.py::test_strangers_and_keys_for_something_else_are_refused",
        "controlplane/test_admin.py::test_only_staff_see_it",
        "gateway/test_endpoints.py::test_a_key_is_needed",
    ),
    # LiteLLM's incident of 2026-03
    "secrets and prompts never reach a log": (
        f"{HERE}::test_logs_hold_no_secret_and_no_prompt",
        "controlplane/test_environment.py::test_secrets_stay_out_of_texts",
        "controlplane/test_admin.py::test_details_show_no_secret",
        "gateway/http/aws/test_sigv4.py::test_secrets_stay_out_of_reprs",
    ),
    # litellm#14457, litellm#33736, litellm#17364, litellm#37992
    "what came before a hang-up is billed and the backend stopped; a zero is a zero": (
        "gateway/test_faults.py::test_a_hang_up_cancels_the_backend_and_bills_what_came",
        "gateway/backends/test_sagemaker_walk.py::test_a_hang_up_ends_the_containers_work_at_once",
        f"{HERE}::test_a_reported_zero_is_billed_as_zero",
    ),
    # litellm#6895, litellm#31866
    "spend is inserted, never updated in place, and no crash or collision loses it": (
        "controlplane/metering/test_ingest_loop.py::test_two_ingesters_at_once_lose_and_double_nothing",
        "controlplane/metering/test_ingest.py::test_a_crash_between_commit_and_acknowledgement_counts_once",
    ),
    # litellm#27736, litellm#34732, litellm#40095
    "limits hold across processes: reserved first, settled later": (
        "gateway/admission/test_gateways.py::test_windows",
        "gateway/admission/test_gateways.py::test_places",
        "gateway/admission/test_gateways.py::test_a_budget",
        "gateway/admission/test_http.py::test_two_gateways_and_a_kill",
        "gateway/admission/test_http.py::test_tokens_are_reserved_and_settled",
        "gateway/admission/test_bound.py::test_stopped_processes",
    ),
    # litellm#14849
    "cached tokens are billed once; what has no price is flagged": (
        "controlplane/billing/test_report.py::test_prices_are_exact_and_follow_the_day",
        "controlplane/billing/test_report.py::test_what_has_no_price_is_flagged_and_never_zero",
        "gateway/admission/test_http.py::test_a_budget_does_not_let_an_unpriced_model_through",
    ),
    # litellm#16276
    "usage pages read sums, never events": (
        "controlplane/billing/test_report.py::test_a_report_reads_sums_alone",
    ),
    # litellm#38610
    "an error after HTTP 200 ends the stream with an error event and is recorded as one": (
        "gateway/test_app.py::test_a_failure_after_200",
        "gateway/api/responses/test_http.py::test_a_stream_that_breaks_ends_with_a_failed_response",
        "gateway/backends/test_sagemaker_walk.py::"
        "test_a_fault_within_a_stream_ends_it_with_an_error_and_bills_what_came",
    ),
    # aibrix#236, aibrix#1095, vllm#12174
    "adapters come back after a restart, and on a copy that never saw them": (
        "gateway/routing/test_workers.py::test_adapters_stay_on_one_worker_and_follow_when_it_drains",
    ),
}
KEY: Final = {"authorization": f"Bearer {ACME}"}
BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/score": {"queries": "x", "documents": ["y"]},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v1/classify": {"input": "x"},
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_has_its_tests(rule: str) -> None:
    for name in RULES[rule]:
        file, _, test = name.partition("::")
        assert re.search(rf"^(async )?def {test}\b", (ROOT / "tests" / file).read_text(), re.MULTILINE), name


def test_no_parameter_names_an_upstream(gateway: GatewayProcess) -> None:
    names = [
        "api_base",
        "base_url",
        "url",
        "endpoint",
        "api_key",
        "adapter",
        "adapters",
        "lora_path",
        "lora_request",
        "extra_headers",
        "custom_llm_provider",
    ]
    with socket.create_server(("127.0.0.1", 0)) as trap:
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/v1"
        headers = {**KEY, "x-api-base": url, "x-forwarded-host": url, "host": url.split("/")[2]}
        assert set(BODIES) == PATHS
        for path, body in BODIES.items():
            for name in names:
                sent = {"model": "base", **body, name: {"uri": url} if name.startswith("adapter") else url}
                error = httpx.post(gateway.url + path, json=sent, headers=headers).json()["error"]
                # Completions take `adapters`, as a list of model names.
                names_models = (path, name) == ("/v1/completions", "adapters")
                code = "invalid_value" if names_models else "unknown_parameter"
                assert (error["code"], error["param"]) == (code, name)
            stranger = httpx.post(gateway.url + path, json={"model": url, **body}, headers=headers)
            assert stranger.status_code == 404
        call = {"model": "base", "prompt": ["x"], "adapters": [url]}
        error = httpx.post(gateway.url + "/v1/completions", json=call, headers=headers).json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "adapters[0]")
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_keys_that_begin_alike_are_different_keys() -> None:
    """A cache keyed on a key's beginning would mistake the one for the other."""
    beginning, table = "s" * 64, route_table("http://a")
    secrets = {"acme": beginning + "1", "umbrella": beginning + "2"}
    keys = {
        key_id: KeyRoute(tenant, hashlib.sha256(secrets[tenant].encode()).hexdigest())
        for key_id, tenant in (("k1", "acme"), ("k1x", "umbrella"))
    }
    table = replace(table, keys=keys)
    for _ in range(2):
        assert authenticate(table, f"gw_k1_{secrets['acme']}")[1].tenant == "acme"
        assert authenticate(table, f"gw_k1x_{secrets['umbrella']}")[1].tenant == "umbrella"
        for wrong in (f"gw_k1_{secrets['umbrella']}", f"gw_k1x_{secrets['acme']}", f"gw_k1_{beginning}"):
            with pytest.raises(InvalidApiKey):
                authenticate(table, wrong)


@pytest.mark.parametrize(
    "key", ["gw_k1' OR '1'='1_secret1", "gw_k1_' OR ''='", "gw_*_secret1", "gw_k1%00_secret1", "gw_keys/k1_s"]
)
def test_a_key_is_data(gateway: GatewayProcess, key: str) -> None:
    answer = post(gateway, {"model": "base", "messages": ask()}, key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert key not in answer.text


def test_logs_hold_no_secret_and_no_prompt(gateway: GatewayProcess, upstream: str) -> None:
    before = len(gateway.log.read_text())
    prompt = {"marked": "the prompt's own words"}
    extra = {"idempotency-key": "an-idempotency-key"}
    assert post(gateway, {"model": "bot", "messages": ask(tokens=2, **prompt)}, **extra).status_code == 200
    wrong = "gw_k1_a-wrong-secret"
    assert post(gateway, {"model": "bot", "messages": ask(**prompt)}, wrong).status_code == 401
    assert post(gateway, {"model": "bot", "messages": ask(**prompt), "foo": 1}).status_code == 400
    broken = {"model": "bot", "stream": True, "messages": ask(tokens=6, delay=0.001, fail="cut", **prompt)}
    assert "error" in post(gateway, broken).text
    failed = post(gateway, {"model": "bot", "messages": ask(fail=500, **prompt)})
    assert failed.status_code == 502
    # The failed request's id in the log shows that the log is written, so a secret could be in it.
    log = eventually(
        lambda: text if failed.headers["x-request-id"] in (text := gateway.log.read_text()[before:]) else ""
    )
    for secret in ("secret1", "a-wrong-secret", FLEET_TOKEN, "aa11", *prompt.values(), *extra.values()):
        assert secret not in log


def test_a_reported_zero_is_billed_as_zero(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    """Neither an estimate nor a default of the request replaces it."""
    for stream in (False, True):
        body = {"model": "bot", "messages": ask(tokens=0), "stream": stream, "max_tokens": 500}
        assert post(gateway, body).status_code == 200
    events = control_plane.wait_events(2)
    assert {(e.prompt_tokens, e.completion_tokens, e.estimated, e.status) for e in events} == {
        (11, 0, False, "ok")
    }
