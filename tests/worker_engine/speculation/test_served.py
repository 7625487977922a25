"""A service with speculation: metrics by adapter, health, and one delta per token."""

from __future__ import annotations

import re
from pathlib import Path

from tests.worker_engine.conftest import request
from tests.worker_engine.speculation.conftest import eager
from tests.worker_engine.test_service import Serve, serve
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine import metrics
from worker_engine.protocol import GenerateRequest
from worker_engine.server import health_report
from worker_engine.service import Service

__all__ = ["serve"]

FEW = ((97, 40.0), (98, 40.0))


def speculation_metrics(service: Service) -> dict[str, float]:
    lines = re.findall(r"^graftwork_worker_(speculation\S*) (\S+)$", metrics.render(service), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_acceptance_is_told_by_adapter(serve: Serve, tiny_adapters: dict[str, Path]) -> None:
    ref = adapter_ref(tiny_adapters["plain"])

    async def scenario(service: Service) -> None:
        eager(service.engine)
        assert health_report(service)["speculation"] == "ngram"
        for adapter in (None, ref):
            asked = request("x", [1, 2, 3], 200, logit_bias=FEW)
            asked = GenerateRequest("x", asked.prompt_token_ids, asked.sampling, adapter)
            deltas = [delta async for delta in service.generate(asked)]
            assert [len(delta.token_ids) for delta in deltas] == [1] * 200
            assert [delta.completion_tokens for delta in deltas] == list(range(1, 201))
        seen = speculation_metrics(service)
        for name in ("_base", ref.name):
            proposed = seen[f'speculation_proposed_tokens_total{{adapter="{name}"}}']
            kept = seen[f'speculation_accepted_tokens_total{{adapter="{name}"}}']
            assert 0 < kept <= proposed
        assert seen["speculation_length"] > 0
        assert len(seen) == 5
        assert service.engine.num_generated_tokens == 400

    serve(scenario, speculation="ngram")


def test_without_speculation_nothing_is_told(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        assert health_report(service)["speculation"] == "off"
        assert not speculation_metrics(service)
        assert service.engine.speculator is None

    serve(scenario)
