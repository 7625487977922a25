"""Creates optimization data of a base model: jobs, an assessment, a comparison of six arms at four loads."""

from __future__ import annotations

from typing import Any, Final

from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.optimization.models import Assessment, ComparisonRun, OptimizationJob

JOBS: Final = 20
_ARMS: Final = ("original", *(f"arm-{number}" for number in range(1, 6)))
_STREAMS: Final = (1, 4, 16, 64)
_SAMPLES: Final = 20
_COMPARED: Final = ("ttft_p50", "itl_p50", "tokens_per_s")


def optimizations_add(base: BaseModel) -> dict[str, str]:
    """Create finished jobs and runs; return their address parameters."""
    ended = timezone.now()
    log = "\n".join(f"12:00:{line:02} layer {line} of 32 is quantized" for line in range(50))
    jobs = [
        OptimizationJob.objects.create(
            base_model=base,
            machine="cpu",
            checkpoint_sha256="0" * 64,
            recipe={"quantization": "none"},
            recipe_sha256="1" * 64,
            engine="local",
            identity=f"{number:064x}",
            variant_name=f"v-{number}",
            status="failed",
            ended_at=ended,
            log_tail=log,
            reason="out of memory",
            attempts=3,
        )
        for number in range(JOBS)
    ]
    comparison = ComparisonRun.objects.create(
        base_model=base,
        machine="cpu",
        identity="3" * 64,
        status="done",
        percent=100,
        ended_at=ended,
        arms=[{"name": name, "variant": ""} for name in _ARMS],
        result=_compared(),
    )
    advice = {"RecommendationDescription": "a machine", "DeploymentConfiguration": {"ImageUri": "image"}}
    assessment = Assessment.objects.create(
        base_model=base,
        machine="aws",
        subject="benchmark",
        status="done",
        ended_at=ended,
        result={"recommendations": [advice] * 10, "output": "s3://bucket/", "files": ["figures.json"] * 20},
    )
    return {
        "optimization": str(jobs[0].pk),
        "comparison": str(comparison.pk),
        "assessment": str(assessment.pk),
    }


def _compared() -> dict[str, Any]:
    names = [f"{figure} at {streams}" for streams in _STREAMS for figure in _COMPARED]
    verdict = {"ratio": 1.2, "low": 1.1, "high": 1.3, "p": 0.01, "verdict": "difference shown"}
    answers = dict.fromkeys(_ARMS, "Paris. " * 40)
    texts = {"tokens": 999, "perplexity": 17.0, "perplexity_ratio": 1.0}
    return {
        "schema": "graftwork.optimization.comparison/1",
        "machine": {"cpu": "A processor", "cores": 2, "date": "2026-11-22 13:00 UTC"},
        "rounds": {"measured": 12, "warm_up": 1, "seed": 0},
        "arms": [{"name": name, "weights_bytes": 269e6} for name in _ARMS],
        "levels": [
            {"concurrency": streams, "arms": {name: _figures(30.0 * streams) for name in _ARMS}}
            for streams in _STREAMS
        ],
        "comparisons": [
            {"arm": name, "original": _ARMS[0], "level": 0.01, "figures": dict.fromkeys(names, verdict)}
            for name in _ARMS[1:]
        ],
        "quality": {
            "arms": {name: {"texts": texts} for name in _ARMS},
            "samples": [
                {"voice": "base", "line": line, "prompt": "Name a capital.", "answers": answers}
                for line in range(_SAMPLES)
            ],
        },
    }


def _figures(speed: float) -> dict[str, Any]:
    spread = {"p50": speed, "p90": speed * 1.2, "p99": speed * 1.6}
    price = {"by": "throughput", "formula": "f", "currency": "USD", "per_million": 1.2}
    return {
        "requests": 40,
        "prompt_tokens": 4000,
        "cached_share": 0.0,
        "completion_tokens": 1280,
        "ttft_ms": spread,
        "itl_ms": spread,
        "answer_ms": spread,
        "otps": spread,
        "tokens_per_s": speed,
        "throughput_by_formula": speed,
        "blended": [price],
    }
