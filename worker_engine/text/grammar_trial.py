"""Compiles each new grammar in a process of its own first, with limits of memory and time.

`python -m worker_engine.text.grammar_trial` reads the tokenizer once and forks for each grammar: the memory
that a grammar takes is gone when its process ends. The worker compiles only grammars that are known to fit.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from worker_engine.errors import InvalidRequest

MAX_BYTES: Final = 32 << 20
"""Memory that one compiled grammar may keep."""
MAX_SECONDS: Final = 1.0
"""CPU time of one compilation; ordinary schemas take milliseconds."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_NICE: Final = 10
"""A compilation gives way to the forward passes of a worker on the CPU."""


class GrammarTrial:
    """The process, started at the first grammar and again after it has ended. Not thread-safe."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._arguments = [str(tokenizer), str(vocab_size), *map(str, eos_token_ids)]
        self._process: subprocess.Popen[bytes] | None = None

    def measure(self, source: str) -> int:
        """Bytes that the library keeps for a grammar in its own form. Raises InvalidRequest."""
        for _ in range(2):
            told = self._ask(source)
            if told is not None:
                break
        else:
            raise InvalidRequest(_too_much())
        if "error" in told:
            raise InvalidRequest(told["error"])
        return int(told["bytes"])

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process = None

    def _ask(self, source: str) -> dict[str, Any] | None:
        """The answer; None where the process has ended, which is then started anew."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(source).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            self.close()
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "worker_engine.text.grammar_trial", *self._arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _too_much() -> str:
    return (
        f"the grammar is too complex: compiling it takes over {MAX_BYTES >> 20} MiB or {MAX_SECONDS:g} s. "
        "Use fewer and smaller repetitions, enumerations and patterns"
    )


def _held(*, resident: bool) -> int:
    """Bytes of this process: resident, or of its address space."""
    return int(Path("/proc/self/statm").read_text().split()[resident]) * _PAGE


def _try(tokenizer: Any, source: str) -> dict[str, Any]:
    """In a fork: compiles within the limits."""
    from worker_engine.text.grammar_library import compile_source

    # Twice what may be kept: while it compiles the library holds more.
    room = _held(resident=False) + 2 * MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    before = _held(resident=True)
    try:
        matcher = compile_source(tokenizer, source)
    except InvalidRequest as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": _too_much()}
    kept = max(0, _held(resident=True) - before)
    del matcher
    return {"error": _too_much()} if kept > MAX_BYTES else {"bytes": kept}


def _in_a_fork(tokenizer: Any, source: str) -> dict[str, Any]:
    """Runs `_try` in a fork; a fork that was killed exceeded its limits."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # The library says on standard error that its memory is at an end, and aborts.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(write, json.dumps(_try(tokenizer, source)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        answer = told.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(answer) if answer else {"error": _too_much()}
    return found


def main() -> None:
    from worker_engine.text.grammar_library import read_tokenizer

    path, vocab_size, *eos = sys.argv[1:]
    # Ctrl-C in a terminal is for the worker, whose end closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    tokenizer = read_tokenizer(Path(path), int(vocab_size), [int(token) for token in eos])
    for line in sys.stdin.buffer:
        answer = _in_a_fork(tokenizer, json.loads(line))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
