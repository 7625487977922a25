"""Grammars in a process of their own first: its limits, its end, and whose turn it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.worker_engine.text.test_structured_output import compiler, regex, schema
from tests.worker_process import run_worker
from worker_engine.errors import InvalidRequest, TooManyRequests
from worker_engine.text import structured_output
from worker_engine.text.grammar_trial import MAX_BYTES, GrammarTrial
from worker_engine.text.structured_output import MAX_WAITING, GrammarCompiler

__all__ = ["compiler"]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_is_refused_leaves_nothing_in_the_worker(compiler: GrammarCompiler) -> None:
    """Each of these grammars once leaked 150 to 190 MB."""
    asyncio.run(compiler.prepare(regex("warm"), "x"))
    before = resident()
    for number in range(30):
        for text in ("(?x)((a{ 9999 }){ 99%02d })", "((b{317}){3%02d})", "(c{100}){2%02d}"):
            with pytest.raises(InvalidRequest):
                asyncio.run(compiler.prepare(regex(text % number), "guided_regex"))
    assert resident() - before < 8 << 20


@pytest.mark.costly("starts the trial's process twice")
@pytest.mark.parametrize(("limit", "value"), [("MAX_BYTES", 1 << 16), ("MAX_SECONDS", 1e-3)])
def test_a_grammar_beyond_the_trials_limits_is_refused_and_the_next_one_compiled(
    tiny_model: Path, limit: str, value: float
) -> None:
    """In the trial's own process, whose limits are lowered for this."""
    code = (
        f"import sys, worker_engine.text.grammar_trial as trial; trial.{limit} = {value}\n"
        "sys.argv[1:] = sys.argv[2:]; trial.main()"
    )
    trial = GrammarTrial(tiny_model / "tokenizer.json", 256, (255,))
    trial._process = subprocess.Popen(
        [sys.executable, "-c", code, "-", *trial._arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    # 70 ms: the kernel counts CPU time in ticks of a few milliseconds.
    patterns = {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{3}}x{i}$"} for i in range(800)}
    hard = structured_output._source(schema({"type": "object", "properties": patterns}))
    try:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="too complex: compiling it takes over"):
                trial.measure(hard)
        trial.close()
        assert 0 <= trial.measure(hard) < MAX_BYTES, "by its real limits, in a process started anew"
    finally:
        trial.close()


@pytest.mark.costly("starts the trial's process twice")
def test_a_trial_that_is_killed_is_started_again(tiny_model: Path) -> None:
    trial = GrammarTrial(tiny_model / "tokenizer.json", 256, (255,))
    source = structured_output._source(regex("a"))
    try:
        trial.measure(source)
        assert trial._process is not None
        trial._process.kill()
        assert trial.measure(source) >= 0
    finally:
        trial.close()


def trial_of(model: Path) -> int:
    """The process in which the one worker that serves the folder `model` tries grammars."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if (
                b"worker_engine.text.grammar_trial" in words
                and os.fsencode(model / "tokenizer.json") in words
            ):
                return int(folder.name)
    raise AssertionError(f"no process tries grammars for {model}")


@pytest.mark.costly("starts the trial's process")
def test_streams_go_on_while_grammars_are_tried(tiny_model: Path, tmp_path: Path) -> None:
    """The trial's process is stopped meanwhile: a stream that waited for it would never end."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    with run_worker(model, tmp_path, "--memory-gib", "0.05") as worker, ThreadPoolExecutor(4) as pool:
        assert worker.complete(guided_regex="a+")[0] == 200
        trial = trial_of(model)
        os.kill(trial, signal.SIGSTOP)
        try:
            held = [pool.submit(worker.complete, guided_regex=f"b{{{count}}}") for count in range(1, 5)]
            with Path(f"/proc/{trial}/fd/0").open("rb", buffering=0) as orders:
                assert select.select([orders], [], [], 60)[0], "no grammar came"
            status, answer = worker.complete(max_tokens=200)
            assert (status, answer["usage"]["completion_tokens"]) == (200, 200)
            assert not any(answer.done() for answer in held)
        finally:
            os.kill(trial, signal.SIGCONT)
        assert [answer.result()[0] for answer in held] == [200] * 4


def test_tenants_take_turns(compiler: GrammarCompiler) -> None:
    """A tenant with many grammars delays another tenant by one compilation at most."""
    done: list[str] = []

    async def one(tenant: str, number: int) -> None:
        await compiler.prepare(schema({"enum": [f"{tenant} {number} {i}" for i in range(500)]}), "x", tenant)
        done.append(tenant)

    async def run() -> None:
        flood = [asyncio.create_task(one("flood", number)) for number in range(8)]
        await asyncio.sleep(0)
        other = asyncio.create_task(one("other", 0))
        await asyncio.gather(*flood, other)

    asyncio.run(run())
    assert done.index("other") == 1
    assert done.count("flood") == 8


def test_a_tenant_may_not_queue_grammars_without_end(compiler: GrammarCompiler) -> None:
    async def run() -> list[BaseException | None]:
        asked = [compiler.prepare(regex(f"a{number}"), "x", "flood") for number in range(MAX_WAITING + 5)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        await compiler.prepare(regex("b"), "x", "other")
        return results

    refused = [result for result in asyncio.run(run()) if result is not None]
    assert len(refused) == 4, "one is compiled, sixteen wait"
    assert all(isinstance(error, TooManyRequests) for error in refused)
