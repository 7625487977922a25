"""`compare`: starts the arms, measures and compares them, and writes one result file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from contracts.adapters.config import AdapterConfigError
from contracts.adapters.folder import folder_digest
from contracts.adapters.reference import AdapterRef, engine_name
from contracts.recipes.model_facts import ModelFacts, checkpoint_files, files_digest, sha256_of
from contracts.recipes.progress import Code, JobError, Phase, Reporter
from contracts.recipes.recipe import canonical_digest
from contracts.recipes.spec_fields import SpecError
from optimizer.measurement.arm_process import ArmProcess, Memory, sizes
from optimizer.measurement.comparison_order import Adapter, Arm, ComparisonOrder, Level
from optimizer.measurement.quality import QualityRun
from optimizer.measurement.rounds import JUDGED, ArmRun, Rounds, measure, percentile, percentiles
from optimizer.measurement.statistics import FAMILY_LEVEL, judged, least_rounds
from optimizer.measurement.workload import Workload
from optimizer.output_folder import write_json
from worker_engine.machine import facts

PHASES: Final = (Phase("data", 2), Phase("start", 8), Phase("rounds", 60), Phase("quality", 30))
SCHEMA: Final = "graftwork.optimization.comparison/1"
"""docs/optimization.md documents it field by field."""
_SPARE_ROUNDS: Final = 2
"""Rounds beyond `least_rounds`, so that one round may contradict the others."""


def compare(order: ComparisonOrder, output: Path, reporter: Reporter) -> Mapping[str, Any]:
    """Write the result file and return the result's fields.

    Raises:
        JobError, SpecError: malformed data or order, before a worker is started.
        Cancelled: from the reporter, or by a signal; all workers have ended.
    """
    reporter.phase("data")
    if output.exists():
        raise JobError(
            Code.OUTPUT_EXISTS, f"{output} is there already: choose another --output, or delete it"
        )
    rounds = _rounds_of(order)
    digests = _model_digests(order.arms, reporter)
    refs = [(adapter, _ref(adapter)) for adapter in order.adapters]
    original = order.arms[0].model
    workload = Workload(order.load, original, [ref for _, ref in refs], order.seed)
    quality = QualityRun(order.quality, order.load.prompts, refs, original)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graftwork-compare-")))
        reporter.phase("start")
        arms = _start(order.arms, scratch, stack, reporter)
        # Before the quality part, whose prompts would fill every prefix cache.
        reporter.phase("rounds")
        measured = measure(
            arms,
            workload,
            levels=order.load.levels,
            rounds=rounds,
            warm_up=order.load.warm_up,
            seed=order.seed,
            told=reporter.progress,
        )
        reporter.phase("quality")
        found = quality.run(arms, reporter.progress)
        started = {arm.arm.name: (arm.started, arm.memory()) for arm in arms}
    result = {
        "schema": SCHEMA,
        "machine": facts(),
        "rounds": {"measured": rounds, "warm_up": order.load.warm_up, "seed": order.seed},
        "load": _plain(asdict(order.load)),
        "arms": [_arm(arm, digests[arm.name], *started[arm.name]) for arm in order.arms],
        "levels": [_level(order, measured, level) for level in order.load.levels],
        "comparisons": [_comparison(order, measured, arm) for arm in order.arms[1:]],
        "quality": found,
    }
    write_json(output, {**result, "digest": canonical_digest(result)})
    return {"output": str(output), "verdicts": result["comparisons"], "quality": found["arms"]}


def _rounds_of(order: ComparisonOrder) -> int:
    least = least_rounds(len(JUDGED) * len(order.load.levels), _level_of(order))
    if 0 < order.load.rounds < least:
        raise SpecError(
            f"load.rounds of {order.load.rounds} cannot show any difference among so many figures: "
            f"{least} are the least, 0 takes {least + _SPARE_ROUNDS}"
        )
    return order.load.rounds or least + _SPARE_ROUNDS


def _level_of(order: ComparisonOrder) -> float:
    """Return the significance level of one arm: arms share it, each being a family of its own."""
    return FAMILY_LEVEL / (len(order.arms) - 1)


def _model_digests(arms: Sequence[Arm], reporter: Reporter) -> dict[str, str]:
    known: dict[Path, str] = {}
    for index, arm in enumerate(arms):
        if arm.model not in known:
            ModelFacts.read(arm.model)
            known[arm.model] = files_digest(
                {path.name: sha256_of(path) for path in checkpoint_files(arm.model)}
            )
        reporter.progress((index + 1) / len(arms), f"read {arm.name}")
    return {arm.name: known[arm.model] for arm in arms}


def _ref(adapter: Adapter) -> AdapterRef:
    """Return a reference to the adapter. Raises JobError where the folder is not a supported adapter."""
    try:
        config, digest = folder_digest(adapter.folder)
        name = engine_name(tenant="compare", adapter=adapter.name, version=1, sha256=digest)
        return AdapterRef(name, adapter.folder.resolve().as_uri() + "/", digest, config.max_rank)
    except (OSError, AdapterConfigError, ValueError) as error:
        raise JobError(Code.BAD_DATA, f"adapter {adapter.name}: {error}") from error


def _start(arms: Sequence[Arm], scratch: Path, stack: ExitStack, reporter: Reporter) -> list[ArmProcess]:
    started = []
    for index, arm in enumerate(arms):
        folder = scratch / str(index)
        folder.mkdir()
        process = ArmProcess(arm, folder)
        stack.callback(process.stop)
        process.start()
        started.append(process)
        reporter.progress((index + 1) / len(arms), f"{arm.name} serves")
    return started


def _arm(arm: Arm, digest: str, started: Mapping[str, Any], memory: Memory) -> dict[str, Any]:
    return {
        "name": arm.name,
        "model": arm.model.name,
        "model_digest": digest,
        "weights_bytes": sizes(arm.model),
        "flags": list(arm.flags),
        "environment": sorted(arm.environment),
        "memory": {"peak_bytes": memory.peak, "pss_bytes": memory.shared_fairly},
        "startup": started.get("startup"),
        "device": started.get("device"),
    }


def _level(order: ComparisonOrder, measured: Rounds, level: Level) -> dict[str, Any]:
    arms = {arm.name: _figures(order, arm, measured.runs[arm.name, level], level) for arm in order.arms}
    return {"concurrency": level.streams or None, "speed": level.speed or None, "arms": arms}


def _figures(order: ComparisonOrder, arm: Arm, runs: Sequence[ArmRun], level: Level) -> dict[str, Any]:
    """Return the figures over all streams of all rounds; times in milliseconds."""
    streams = [stream for run in runs for stream in run.streams]
    gaps = [gap for stream in streams for gap in stream.itl]
    answers = [stream.ended - stream.sent for stream in streams]
    seconds = sum(run.seconds for run in runs)
    prompt, middle = sum(stream.prompt_tokens for stream in streams), percentile(gaps, 50)
    price = arm.price or order.price
    # The formula assumes streams that are always busy, which those of a replay are not.
    formula = level.streams / middle if level.streams and middle else None
    return {
        "requests": len(streams),
        "prompt_tokens": prompt,
        "cached_share": sum(stream.cached_tokens for stream in streams) / max(prompt, 1),
        "completion_tokens": sum(stream.tokens for stream in streams),
        "ttft_ms": percentiles([stream.ttft for stream in streams], 1e3),
        "itl_ms": percentiles(gaps, 1e3),
        "answer_ms": percentiles(answers, 1e3),
        "otps": percentiles([speed for stream in streams if (speed := stream.otps)]),
        "tokens_per_s": sum(stream.tokens for stream in streams) / seconds,
        "in_flight": sum(answers) / seconds,
        "throughput_by_formula": formula,
        "blended": price.blended(throughput=formula) if price else [],
    }


def _comparison(order: ComparisonOrder, measured: Rounds, arm: Arm) -> dict[str, Any]:
    family_level = _level_of(order)
    ratios = measured.log_ratios(arm.name, order.load.levels)
    verdicts = judged(ratios, level=family_level, seed=order.seed) if ratios else {}
    return {
        "arm": arm.name,
        "original": order.arms[0].name,
        "level": family_level,
        "figures": {name: verdict.to_dict() for name, verdict in verdicts.items()},
    }


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with paths replaced by names, since results are moved to other machines."""
    return {name: item.name if isinstance(item, Path) else item for name, item in value.items()}
