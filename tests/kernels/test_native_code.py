"""The machine code of the native loops, where a change that computes the same can cost most of the speed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from kernels import native

_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
_PRODUCT = re.compile(r"vfmadd\w+|vdpbf16ps")


def inner_loops(code: str) -> Iterator[list[tuple[str, str]]]:
    """Instructions (name, operands) from a jump's target to that jump back, nothing jumping in between."""
    for function in code.split("\n\n"):
        lines = [found.groups() for line in function.splitlines() if (found := _INSTRUCTION.match(line))]
        at = {address: index for index, (address, _, _) in enumerate(lines)}
        for index, (_, name, operands) in enumerate(lines):
            start = at.get(operands.split(" ")[0], len(lines)) if name.startswith("j") else len(lines)
            body = [(name, operands) for _, name, operands in lines[start : index + 1]]
            if body and not any(name.startswith("j") for name, _ in body[:-1]):
                yield body


def stores(body: list[tuple[str, str]]) -> int:
    """Return the number of whole vectors that a loop stores per iteration."""
    return sum(
        name.startswith("vmov") and operands.startswith(("%ymm", "%zmm")) and operands.endswith(")")
        for name, operands in body
    )


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump on this machine")
@pytest.mark.usefixtures("loops")
def test_sums_stay_in_registers() -> None:
    """A sum that is written to memory at every product takes 2.5 times as long, and is no less right."""
    assert native.LIBRARY is not None
    command = ["objdump", "--disassemble", "--no-show-raw-insn", native.LIBRARY._name]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counted = [
        (sum(bool(_PRODUCT.match(name)) for name, _ in body), stores(body)) for body in inner_loops(code)
    ]
    products = [(count, written) for count, written in counted if count >= 8]
    assert len(products) > 10, "the loops are not found: does the disassembly look otherwise?"
    assert [(count, written) for count, written in products if written > count // 6] == []
