"""/metrics after known requests."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.worker_engine.test_service import Serve, count, long, serve, short
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine import metrics, model_runner
from worker_engine.protocol import Origin
from worker_engine.server import health_report
from worker_engine.service import Service

__all__ = ["serve"]


def value(service: Service, sample: str) -> float:
    match = re.search(rf"^graftwork_worker_{re.escape(sample)} (\S+)$", metrics.render(service), re.MULTILINE)
    assert match, f"no {sample} in\n{metrics.render(service)}"
    return float(match[1])


@pytest.mark.costly("starts a worker of its own")
def test_figures_after_requests(serve: Serve, tiny_adapters: dict[str, Path]) -> None:
    async def scenario(service: Service) -> None:
        ref = adapter_ref(tiny_adapters["plain"])
        assert await count(service.generate(long("a", ref))) == 400
        assert await count(service.generate(long("b", ref))) == 400
        assert value(service, "generated_tokens_total") == 800
        assert value(service, "ttft_seconds_count") == value(service, "queue_seconds_count") == 2
        assert value(service, "itl_seconds_count") == 798
        assert 0 < value(service, "queue_seconds_sum") <= value(service, "ttft_seconds_sum")
        assert value(service, 'adapter_load_seconds_count{tier="store"}') == 1
        assert value(service, 'adapter_requests_total{tier="memory"}') == 1
        assert value(service, 'adapter_requests_total{tier="store"}') == 1
        assert value(service, 'adapters_resident{tier="host"}') == 1
        assert value(service, 'adapters_resident{tier="batch"}') == 1
        assert value(service, "prefix_queried_tokens_total") == 6
        assert value(service, "kv_pages_used") == 0
        assert value(service, "kv_pages_cached") > 400 / 16 - 1
        assert value(service, "up") == 1
        families = {f"{family.name} {family.type}" for family in parse(metrics.render(service))}
        assert families >= {
            f"graftwork_worker_{family}"
            for family in ("generated_tokens counter", "kv_pages_total gauge", "itl_seconds histogram")
        }

    serve(scenario)


def test_the_devices_tier_has_figures_of_its_own(
    serve: Serve, tiny_adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)

    async def scenario(service: Service) -> None:
        nbytes = 0
        for name in ("plain", "all"):
            ref = adapter_ref(tiny_adapters[name])
            assert await count(service.generate(replace(short(name), adapter=ref))) == 5
            async with service.adapters.acquire(ref) as adapter:
                nbytes += adapter.nbytes
        assert value(service, "adapter_device_bytes_total") == nbytes
        assert value(service, 'adapter_load_seconds_count{tier="host"}') == 1  # of earlier loads
        assert value(service, 'adapters_resident{tier="batch"}') == 2

    serve(scenario)


def test_tenants_are_shown_up_to_a_bound(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_TENANTS", 2)

    async def scenario(service: Service) -> None:
        streams = [
            service.generate(replace(long(str(number)), origin=Origin(tenant=f"t{number}")))
            for number in range(4)
        ]
        for stream in streams:
            await anext(stream)
        text = metrics.render(service)
        shown = re.findall(r'tenant_requests_running\{tenant="(\w+)"\} (\S+)', text)
        assert len(shown) == 3
        assert dict(shown)[metrics.OTHERS] == "2.0"
        assert value(service, "requests_running") == 4
        for stream in streams:
            await stream.aclose()
        assert await count(service.generate(short("end"))) == 5

    serve(scenario, max_num_seqs=4)


def test_nothing_is_said_of_merging_where_it_is_off(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        await count(service.generate(short("a")))
        assert "merge" not in metrics.render(service)
        assert health_report(service)["merging"] is None

    serve(scenario)


@pytest.mark.costly("starts a worker of its own")
def test_a_hot_adapter_is_merged_and_its_steps_are_counted(
    serve: Serve, tiny_adapters: dict[str, Path]
) -> None:
    hot, cold = (adapter_ref(tiny_adapters[name], name=name) for name in ("all", "plain"))

    async def scenario(service: Service) -> None:
        assert health_report(service)["merging"] == {
            "layers": 0,
            "of": 3,
            "active": False,
            "merges": 0,
            "step_ms": {"merged": None, "base": None},
        }
        assert await count(service.generate(long("a", hot))) == 400
        assert value(service, f'merged_layers{{adapter="{hot.sha256[:12]}"}}') == 3
        assert value(service, "merged_bytes") > 0
        assert value(service, "merged_since_seconds") > 1e9
        assert value(service, 'merges_total{event="completed"}') == 1
        assert value(service, "merge_seconds_total") > 0
        merged, base = (
            value(service, f'one_adapter_steps_total{{weights="{weights}"}}')
            for weights in ("merged", "base")
        )
        assert merged > 300
        # Before it is hot, 90% of 64 steps; each of the 3 layers then takes a step that is not counted.
        assert 40 < base < 64
        assert value(service, "merged_steps_total") >= merged
        assert value(service, 'one_adapter_rows_total{weights="merged"}') == merged, "one row a step"
        report = health_report(service)["merging"]
        assert isinstance(report, dict)
        assert (report["layers"], report["merges"]) == (3, 1)
        assert all(mean > 0 for mean in report["step_ms"].values())
        assert hot.sha256[:12] not in str(report), "/health is public"

        assert await count(service.generate(long("b", cold))) == 400
        assert value(service, 'merges_total{event="dropped"}') == 1
        assert value(service, f'merged_layers{{adapter="{cold.sha256[:12]}"}}') == 3

    serve(scenario, merge_adapter="auto")
