"""A comparison with the real subprocess: worker processes of the demo model and of a job's variant."""

from __future__ import annotations

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.console.optimization.comparison_charts import bars, frontier, ranked, samples
from controlplane.optimization.attempt import work_run
from controlplane.optimization.comparisons import comparison_create
from controlplane.optimization.models import Attempt
from controlplane.optimization.prompt_sets import prompts_create
from tests.controlplane.optimization.conftest import Ask, prompt_lines

pytestmark = [pytest.mark.django_db, pytest.mark.model]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_variant_is_measured_beside_the_original(demo_base: BaseModel, ask: Ask) -> None:
    job = ask(demo_base, {"compilation": {"ahead_of_time": True}}, variant="compiled")
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    assert job.status == "done", (job.reason, job.log_tail)
    prompts = prompts_create(
        stream=prompt_lines(*[f"Question {number}: what is {number}?" for number in range(9)])
    )
    run, _ = comparison_create(
        base_model=demo_base,
        arms=[{"variant": ""}, {"variant": "compiled"}],
        prompts=prompts,
        texts=prompts,
        settings={
            "load": {"concurrency": [1], "max_tokens": 4, "rounds": 9, "warm_up": 0},
            "quality": {"prompts": 8, "answer_tokens": 4, "most_texts": 8, "text_tokens": 16, "samples": 1},
            "price": {"hour": 1.0},
        },
    )
    work_run(kind="comparison", pk=run.pk)
    run.refresh_from_db()
    assert run.status == "done", (run.reason, run.log_tail)
    assert run.result is not None
    assert {arm["name"] for arm in run.result["arms"]} == {"original", "compiled"}
    served = next(arm for arm in run.result["arms"] if arm["name"] == "compiled")
    assert served["environment"] == ["GRAFTWORK_WORKER_CACHE_DIR"]
    # The weights are the original's: so are the answers.
    ((_, _, first), (_, _, second)) = samples(run.result)[0]["answers"]
    assert first
    assert second
    assert len(ranked(run.result)) == 2
    assert len(bars(run.result)) == 1
    chart = frontier(run.result)
    assert chart is not None
    assert chart.priced
    assert Attempt.objects.filter(subject__startswith="comparison-", ended_at=None).count() == 0
    assert Attempt.objects.count() == 2
