"""The self-check finds kernels that are wrong, do not compile, break their process or never end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from kernels import selection
from kernels.norm import rms_norm
from kernels.self_check import CHECKS, LIMIT_S, ModelShapes, verify

pytestmark = pytest.mark.costly("runs all kernels")

CPU = torch.device("cpu")
SHAPES = ModelShapes(
    hidden=40,
    intermediate=24,
    heads=4,
    kv_heads=2,
    head_dim=16,
    linears=((40, (64, 32, 32)), (24, (40,))),
    windows=(0, 20),
    activation="silu",
    page_size=16,
    dtype="torch.float32",
)
FAULTY = "tests.kernels.faulty_kernels"


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """The child runs the kernels in Triton's interpreter."""
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}):
        yield


@pytest.mark.parametrize("dtype", ["torch.float32", pytest.param("torch.float16", marks=pytest.mark.slow)])
def test_all_kernels_pass(dtype: str) -> None:
    shapes = ModelShapes(**{name: getattr(SHAPES, name) for name in SHAPES.__slots__} | {"dtype": dtype})
    assert verify(shapes, CPU) == dict.fromkeys(CHECKS, "")


def test_products_with_quantized_weights_are_checked() -> None:
    """In every group size that the model has; one that does not divide a layer's inputs is left out there."""
    linears = ((64, (48, 16)), (96, (40,)))
    shapes = replace(SHAPES, linears=linears, groups=((32, True), (64, False)), fp8=True, mxfp4=True)
    names = ("quantization", "activation")
    assert verify(shapes, CPU, {name: CHECKS[name] for name in names}) == dict.fromkeys(names, "")
    wrong = verify(shapes, CPU, {"quantization": f"{FAULTY}:wrong_zeros"})
    assert "WrongResult: linear 64 to 64 in groups of 32, 1 rows: largest error" in wrong["quantization"]


def test_what_fails_is_named_and_the_rest_goes_on() -> None:
    checks = {
        "activation": CHECKS["activation"],
        "norm": f"{FAULTY}:wrong_norm",
        "lora": f"{FAULTY}:uncompilable",
        "attention": f"{FAULTY}:broken_context",
        "lora_graph": f"{FAULTY}:unwritten_norm",
        "rotary": CHECKS["rotary"],
    }
    found = verify(SHAPES, CPU, checks)
    assert set(found) == set(checks)
    assert [op for op, problem in found.items() if not problem] == ["activation", "rotary"]
    assert "WrongResult: rms_norm: largest error" in found["norm"]
    assert found["lora"] == "RuntimeError: out of resource: shared memory"
    assert "ended with -6" in found["attention"]
    assert "largest error nan" in found["lora_graph"]


def test_a_check_that_never_ends_is_left() -> None:
    checks = {"rotary": f"{FAULTY}:endless", "norm": f"{FAULTY}:uncompilable"}
    limits, run = iter([1.0]), subprocess.run

    def run_first_briefly(*args: Any, timeout: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
        # A busy machine may need any time for the second process, so only the first gets a short limit.
        return run(*args, timeout=next(limits, timeout), **options)

    with mock.patch("subprocess.run", run_first_briefly):
        found = verify(SHAPES, CPU, checks)
    assert found["rotary"] == f"it did not end within {LIMIT_S:g} s"
    assert "out of resource" in found["norm"]


def test_selected_ops_run_their_kernels_and_others_do_not() -> None:
    """On this CPU a kernel without the interpreter cannot run, so that running it shows."""
    x, weight = torch.randn(2, 8), torch.ones(8)
    expected = rms_norm(x, weight, 1e-5)
    try:
        selection.select(["lora"], CPU)
        assert torch.equal(rms_norm(x, weight, 1e-5), expected)
        selection.select(["norm"], CPU)
        with mock.patch("kernels.norm.gpu.rms_norm", return_value=weight):
            assert rms_norm(x, weight, 1e-5) is weight
    finally:
        selection.select([], CPU)
    assert torch.equal(rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("value", ["yes", "", "2"])
def test_a_malformed_mode_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFTWORK_WORKER_TRITON", value)
    with pytest.raises(ValueError, match="expected auto, 1 or 0"):
        selection.mode()
