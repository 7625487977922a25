"""The examples of docs/design-patterns.md, run as a reader runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demo.patterns import one_base_model, several_base_models
from tests.walk.product import Product

pytestmark = [
    pytest.mark.costly("the whole product"),
    pytest.mark.walk,
    pytest.mark.model,
    pytest.mark.timeout(600),
]


def options_of(product: Product) -> list[str]:
    if product.description is None:
        pytest.skip("needs a product that was started here")
    return ["--demo", str(product.description)]


def test_one_base_model_serves_an_adapter_per_customer(
    product: Product, capsys: pytest.CaptureFixture[str]
) -> None:
    assert one_base_model.main(options_of(product)) == 0
    told = capsys.readouterr().out
    for tenant in product.tenants:
        assert f"{tenant.name} asks its adapter {tenant.adapters[0]}:" in told
    assert told.count("does not exist or you do not have access to it") == len(product.tenants)
    answers = re.findall(r"asks its adapter .*\n  (.+)", told)
    assert len(set(answers)) == len(product.tenants), "each adapter answers in its own words"


def test_two_base_models_share_a_gateway_with_their_adapters(
    product: Product, tiny_model: Path, tiny_adapters: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = next(iter(tiny_adapters.values()))
    second = ["--base-model", "second", "--checkpoint", str(tiny_model), "--adapter", str(adapter)]
    options = [*options_of(product), *second]
    assert several_base_models.main(options) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    customer = product.tenants[0]
    assert f"{customer.adapters[0]} on {customer.base_model}:" in told
    assert f"{adapter.name}-on-second on second:" in told
    assert several_base_models.main([*options, "--remove"]) == 0, capsys.readouterr().err
    with product.openai(customer) as client:
        assert f"{adapter.name}-on-second" not in {model.id for model in client.models.list()}


def test_without_the_demo_the_examples_say_how_to_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for example in (one_base_model, several_base_models):
        assert example.main(["--demo", str(tmp_path / "demo.json")]) == 1
        assert "start the demo with `make demo`" in capsys.readouterr().err
