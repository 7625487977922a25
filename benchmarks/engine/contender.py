"""The common base of all compared servers: a process group that is started, paused, resumed and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx

from benchmarks.engine.adapters import BenchAdapter
from benchmarks.engine.streams import Stream, exchange
from benchmarks.engine.workload import MAX_OUTPUT, MAX_PROMPT, Request
from benchmarks.processes import free_port, status_of

START_SECONDS: Final = 180
MAX_STREAMS: Final = 32
CONTEXT: Final = MAX_PROMPT + MAX_OUTPUT + 32
THREADS: Final = len(os.sched_getaffinity(0))


class Contender(ABC):
    """One server on this machine. It only runs during `ask`; otherwise its processes are stopped.

    Attributes:
        name: in figures.
    """

    name: ClassVar[str]

    def __init__(self, model: Path, adapters: Sequence[BenchAdapter], scratch: Path) -> None:
        """Take the base checkpoint's folder, and an empty folder to write to."""
        self.model, self.adapters, self.scratch = model, adapters, scratch
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    @abstractmethod
    def installed() -> bool:
        """Return True if this machine has everything the contender needs."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that serves on 127.0.0.1 and `port`; may convert files first."""

    @abstractmethod
    def fields(self, request: Request) -> dict[str, Any]:
        """Return the body fields that name the model and the adapter of a request."""

    def environment(self) -> Mapping[str, str]:
        """Return variables added to this process's environment."""
        return {}

    def start(self) -> None:
        """Start the server and wait until it answers. Raises RuntimeError when it ends or takes too long."""
        self.port = free_port()
        log = self.scratch / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command(),
                env=os.environ | dict(self.environment()),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.25)
        self._signal(signal.SIGSTOP)

    def ask(self, requests: Sequence[Request], *, streams: int) -> tuple[list[Stream], float]:
        """Run the requests, `streams` at a time.

        Raises:
            RuntimeError: the server did not process the prompts and generate as many tokens as requested.
        """
        bodies = [self._body(request) for request in requests]
        self._signal(signal.SIGCONT)
        try:
            answers, seconds = exchange(self.port, bodies, streams=streams)
        finally:
            self._signal(signal.SIGSTOP)
        for request, answer in zip(requests, answers, strict=True):
            counted = (answer.prompt_tokens, answer.completion_tokens)
            if counted != (len(request.prompt), request.new_tokens):
                raise RuntimeError(
                    f"{self.name} computed {counted} tokens of prompt and completion; "
                    f"asked for {(len(request.prompt), request.new_tokens)}"
                )
        return answers, seconds

    def stop(self) -> None:
        """Stop all processes of the server."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _body(self, request: Request) -> dict[str, Any]:
        return {
            "prompt": list(request.prompt),
            "max_tokens": request.new_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | self.fields(request)

    def _answers(self) -> bool:
        try:
            return status_of(f"http://127.0.0.1:{self.port}/health") == 200
        except httpx.TransportError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)
