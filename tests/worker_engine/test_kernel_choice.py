"""Kernels that an engine turns on: those that passed the check or were configured, and none on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from kernels import selection
from worker_engine import kernel_choice
from worker_engine.checkpoint.quantization_config import Quantization, Scheme
from worker_engine.kernel_choice import choose_kernels, shapes_of
from worker_engine.models import load_config

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("GRAFTWORK_WORKER_TRITON", raising=False)
    kernel_choice._verified.cache_clear()
    yield
    selection.select([], CUDA)
    kernel_choice._verified.cache_clear()


def on_cuda(op: selection.Op) -> bool:
    return (op, "cuda") in selection._running


def test_none_on_a_cpu(tiny_model: Path) -> None:
    chosen = choose_kernels(load_config(tiny_model), torch.float32, torch.device("cpu"))
    assert set(chosen) == set(selection.OPS)
    assert all("for CUDA" in state for state in chosen.values())
    assert not selection.runs("norm", torch.ones(1))


def test_what_fails_is_off_and_logged_and_the_rest_is_on(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check itself is tested in tests/kernels/test_self_check.py."""
    found = dict.fromkeys(selection.OPS, "") | {"rotary": "WrongResult: rotate_: largest error 1"}
    monkeypatch.setattr(kernel_choice, "verify", lambda shapes, device: found)
    with caplog.at_level(logging.ERROR):
        chosen = choose_kernels(load_config(tiny_model), torch.float32, CUDA)
    assert chosen["rotary"] == found["rotary"]
    assert [state for op, state in chosen.items() if op != "rotary"] == ["triton"] * (len(selection.OPS) - 1)
    assert on_cuda("lora")
    assert not on_cuda("rotary")
    assert "the kernels of rotary failed their self-check" in caplog.text


@pytest.mark.parametrize(("mode", "on"), [("1", True), ("0", False)])
def test_the_operator_decides(mode: str, on: bool, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFTWORK_WORKER_TRITON", mode)
    chosen = choose_kernels(load_config(tiny_model), torch.float32, CUDA)
    assert set(chosen.values()) == ({"triton"} if on else {"GRAFTWORK_WORKER_TRITON=0"})
    assert all(on_cuda(op) is on for op in selection.OPS)


def test_shapes_are_the_models_own(tiny_model: Path) -> None:
    shapes = shapes_of(load_config(tiny_model), torch.bfloat16)
    assert asdict(shapes) == {
        "hidden": 72,
        "intermediate": 104,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 12,
        "linears": ((72, (72,)), (72, (72, 24, 24)), (72, (104, 104)), (104, (72,))),
        "windows": (0,),
        "activation": "silu",
        "page_size": 16,
        "dtype": "torch.bfloat16",
        "groups": (),
        "fp8": False,
        "mxfp4": False,
    }


def test_groups_of_four_bits_are_told(tiny_model: Path) -> None:
    """For 8 bits there is no kernel to check."""
    targets = {
        "a": Scheme(4, 64, False),
        "b": Scheme(4, 64, False),
        "c": Scheme(4, 32, True),
        "d": Scheme(8, 0, True),
    }
    model = replace(load_config(tiny_model), quantization=Quantization("pack-quantized", targets))
    shapes = shapes_of(model, torch.bfloat16)
    assert (shapes.groups, shapes.fp8) == (((32, False), (64, True)), False)
    floats = replace(model, quantization=Quantization("float-quantized", {"e": Scheme(8, 0, True, "e4m3")}))
    shapes = shapes_of(floats, torch.bfloat16)
    assert (shapes.groups, shapes.fp8, shapes.mxfp4) == ((), True, False)
    floats = replace(
        model, quantization=Quantization("mxfp4-pack-quantized", {"e": Scheme(4, 32, True, "e2m1")})
    )
    shapes = shapes_of(floats, torch.bfloat16)
    assert (shapes.groups, shapes.fp8, shapes.mxfp4) == ((), False, True)
