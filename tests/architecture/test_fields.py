"""Every field that a form accepts has an effect, is refused by name, or is listed as descriptive.

`tests/controlplane/deployments/test_images.py` walks a deployment's options through all images. This walk
covers the other forms: a new field fails it until a value here shows what the field does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

import pytest
from django.db import transaction

from contracts.recipes.recipe import Recipe
from contracts.recipes.spec_fields import SpecError
from controlplane.catalog.api import BaseModelChange, BaseModelInput, VariantInput
from controlplane.catalog.models import BaseModel
from controlplane.deployments.scaling_api import ScalingInput
from controlplane.deployments.serializers import DeploymentInput
from controlplane.deployments.targets.api import TargetInput
from controlplane.errors import InvalidInputError
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.serializers import RemoteOptionsInput
from tests.architecture.field_effects import (
    DEPLOYED,
    G5,
    REMOTE_RECIPES,
    ROLE,
    TARGETS,
    base_effect,
    change_effect,
    deployed,
    deployed_effect,
    read_by,
    recipe_effect,
    remote_effect,
    scaling_effect,
    sections,
    target_effect,
    variant_effect,
    worker_effect,
)
from tests.controlplane.conftest import base_model, graftwork, write_checkpoint  # noqa: F401
from tests.controlplane.deployments.test_images import OTHERS
from worker_engine.config import EngineConfig

# The forms, and a value for each of their fields ------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
        fields: names of the fields that it accepts.
        contexts: kinds of target or recipe, each with the values that it needs anyway.
        values: field -> a value that is not the default, and the fields that it needs beside it.
        effect: what a context and values make; raises InvalidInputError or SpecError.
        descriptive: fields without an effect on serving -> what they are for.
    """

    fields: frozenset[str]
    contexts: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, tuple[Any, Mapping[str, Any]]]
    effect: Callable[[str, BaseModel, Mapping[str, Any]], object]
    descriptive: Mapping[str, str]


def _plain(**values: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    return {name: (value, {}) for name, value in values.items()}


CHOSEN: Final = {"target": "chooses the target", "base_model": "chooses the base model"}
RECIPE: Final = Recipe()
RECIPES: Final[dict[str, dict[str, Any]]] = {
    "local CPU": {"quantization": "int8"},
    "local GPU": {"quantization": "int8", "target": {"hardware": "sm90"}},
    "SageMaker GPU": {"quantization": "awq_int4_g128", "target": G5},
    "SageMaker compiled": {"compilation": {"ahead_of_time": True}, "target": G5},
    "SageMaker n-grams": {"speculation": {"method": "ngram"}, "target": G5},
    "Neuron": REMOTE_RECIPES["Neuron"],
}


def _nested(name: str, value: Any, **beside: Any) -> tuple[Any, Mapping[str, Any]]:
    """A value of a section's field, as the section."""
    return {name: value, **beside}, {}


FORMS: Final[dict[str, Form]] = {
    "deployment": Form(
        frozenset(DeploymentInput().fields),
        DEPLOYED,
        {
            **_plain(
                name="other",
                min_copies=0,
                max_copies=3,
                min_instances=0,
                max_instances=5,
                urls=["http://other:8000"],
                options={"max_loras": 8},
                environment={"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "2"},
                compute={"accelerators": 2, "cpus": 4, "memory_mb": 9000},
                adapter_scope="named",
                hosting="fused",
                endpoint="shared",
                image="lmi-0.36.0",
            ),
            "instance_type": ("ml.g6.12xlarge", {}),
            "fallback_instance_types": (["ml.g6.12xlarge"], {}),
            "image_family": ("worker", {"image": "1.dkr.ecr.eu-central-1.amazonaws.com/own:1"}),
            "variant": ("smaller", {}),
        },
        deployed_effect,
        CHOSEN,
    ),
    "optimization.sagemaker": Form(
        frozenset(RemoteOptionsInput().fields),
        {title: {} for title in REMOTE_RECIPES},
        {
            **_plain(weights="s3://store/weights/", model="js", image="", hours=3),
            "environment": ({"OPTION_LOAD_FORMAT": "auto"}, {}),
            "accept_eula": (True, {"weights": "s3://store/weights/"}),
        },
        remote_effect,
        {"target": "chooses the account"},
    ),
    "target": Form(
        frozenset(TargetInput().fields),
        {kind: {} for kind in TARGETS},
        {
            **_plain(
                name="other",
                region="us-east-1",
                endpoint_url="http://sagemaker:8000",
                role_arn=f"{ROLE}-2",
                assume_role_arn=ROLE,
                store="s3://other-models",
                host="there",
                address="10.0.0.7",
                urls=["http://other:8000"],
                token="secret-of-servers",
                headers={"x-key": "secret"},
            )
        },
        target_effect,
        {
            "kind": "chooses the kind",
            "metrics_namespace": "where metrics go; monitoring/test_cloudwatch.py",
            "openai_path": "where gateways send chats; deployments/test_vllm_containers.py",
        },
    ),
    "base model": Form(
        frozenset(BaseModelInput().fields),
        {"local": {}},
        _plain(name="walked-too", source="", served_name="called", hub_token="token"),
        base_effect,
        {"licence": "shown in the catalogue"},
    ),
    "base model's change": Form(
        frozenset(BaseModelChange().fields),
        {"local": {}},
        _plain(max_lora_rank=8, dropped_parameters=["logit_bias"], hub_token="token"),
        change_effect,
        {"licence": "shown in the catalogue"},
    ),
    "variant": Form(
        frozenset(VariantInput().fields),
        {"local": {}},
        _plain(name="walked-too", source="/elsewhere"),
        variant_effect,
        dict.fromkeys(("dtype", "quantization"), "describes the files, whose own config.json is served")
        | {"notes": "shown in the catalogue"},
    ),
    "scaling": Form(
        frozenset(ScalingInput().fields),
        {"sagemaker": {}, "local": {}, "sagemaker endpoint": {}},
        {
            **_plain(
                min_copies=0,
                max_copies=3,
                metric="invocations",
                target=9.0,
                from_zero=2,
                out_after=60,
                in_after=600,
                out_cooldown=61,
                in_cooldown=301,
                protect=True,
                hold_seconds=9,
                routing="RANDOM",
                release="CONSOLIDATION",
                metrics_seconds=30,
                basic_metrics=True,
                timezone="Europe/Berlin",
            ),
            "schedule": (
                [{"name": "day", "at": "08:00", "days": ["mon"], "min_copies": 1, "max_copies": 2}],
                {},
            ),
            "release_cooldown_minutes": (30, {"release": "CONSOLIDATION"}),
        },
        scaling_effect,
        {},
    ),
    "worker": Form(
        frozenset(item.name for item in fields(EngineConfig)),
        {"process": {}},
        {item.name: ("given", {}) for item in fields(EngineConfig)},
        worker_effect,
        {},
    ),
}
SECTIONS: Final[dict[str, list[tuple[Any, Mapping[str, Any]]]]] = {
    "version": [],
    "quantization": [(value, {}) for value in ("none", "awq_int4_g64", "fp8")],
    "head": [("int8", {}), ("stored", {})],
    "speculation.method": [_nested("method", "ngram"), _nested("method", "eagle")],
    "speculation.tokens": [_nested("tokens", 6), _nested("tokens", 6, method="ngram")],
    "speculation.draft_model": [_nested("draft_model", "s3://store/draft/", method="draft")],
    "compilation.ahead_of_time": [_nested("ahead_of_time", True)],
    "compilation.packed": [_nested("packed", True)],
    "compilation.sequence_length": [_nested("sequence_length", 64, ahead_of_time=True)],
    "compilation.batch_size": [_nested("batch_size", 16, ahead_of_time=True)],
    "tensor_parallel.degree": [_nested("degree", 4)],
    "tensor_parallel.presharded": [_nested("presharded", True, degree=4)],
    "target.engine": [],
    "target.hardware": [],
    "target.instance_type": [_nested("instance_type", "ml.g5.48xlarge")],
}
"""Fields of a recipe; engine and hardware choose the context. A section replaces the context's."""
CASES = [
    pytest.param(title, context, field, id=f"{title}, {context}, {field}")
    for title, form in FORMS.items()
    for context in form.contexts
    for field in sorted(form.values)
]


def outcome(effect: Callable[[], object], *names: str) -> str:
    """The effect as text; "refused" if one of the fields is refused by its name."""
    try:
        with transaction.atomic():
            made = json.dumps(effect(), default=str, sort_keys=True)
            transaction.set_rollback(True)
            return made
    except (InvalidInputError, SpecError) as error:
        named = f"{getattr(error, 'field', '')} {error}"
        assert any(name in named for name in names), f"{names} are refused by another name: {named}"
        return "refused"


@pytest.mark.parametrize("title", FORMS)
def test_every_field_of_a_form_has_a_value_here_or_is_descriptive(title: str) -> None:
    form = FORMS[title]
    assert form.fields == form.values.keys() | form.descriptive.keys()


def test_every_field_of_a_recipe_has_a_value_here() -> None:
    names = {
        name if not section.keys() - {name} else f"{name}.{key}"
        for name, section in sections(RECIPE)
        for key in section
    }
    assert names == set(SECTIONS)


@pytest.mark.django_db
@pytest.mark.parametrize(("title", "context", "field"), CASES)
def test_the_field_has_an_effect_or_is_refused_by_name(
    title: str,
    context: str,
    field: str,
    base_model: BaseModel,  # noqa: F811
    tmp_path: Path,
) -> None:
    form = FORMS[title]
    value, beside = form.values[field]
    if title == "base model" and field == "source":
        value = str(write_checkpoint(tmp_path / "other"))
    if field == "image" and title == "optimization.sagemaker":
        value = {"TensorRT-LLM": "tensorrtllm-0.33.0", "Neuron": "neuronx-0.30.0"}.get(context, "lmi-0.36.0")
        if context == "TensorRT-LLM":
            value = "1.dkr.ecr.eu-central-1.amazonaws.com/djl-inference:0.34.0-tensorrtllm0.22.0-cu128"
    base = {**form.contexts[context], **beside}
    names = (field, *beside)
    changed = outcome(lambda: form.effect(context, base_model, {**base, field: value}), *names)
    if changed != "refused":
        assert changed != outcome(lambda: form.effect(context, base_model, base), *names), (
            f"{field} of {title} is accepted for {context} and changes nothing"
        )


@pytest.mark.django_db
@pytest.mark.parametrize("context", RECIPES)
@pytest.mark.parametrize("field", SECTIONS)
def test_a_recipes_field_has_an_effect_or_is_refused_by_name(
    context: str,
    field: str,
    base_model: BaseModel,  # noqa: F811
) -> None:
    section, _, name = field.rpartition(".")
    recipe = RECIPES[context]
    for value, _ in SECTIONS[field]:
        given = {**recipe, section or name: {**recipe.get(section, {}), **value} if section else value}
        names = (name, *value) if section else (name,)
        changed = outcome(lambda given=given: recipe_effect(context, base_model, given), *names)  # type: ignore[misc]
        if changed == "refused" or Recipe.from_dict({"version": 1, **given}) == recipe_read(recipe):
            continue
        assert changed != outcome(lambda: recipe_effect(context, base_model, recipe), name), (
            f"{field} = {value} is accepted for {context} and changes nothing"
        )


NEEDS: Final = {"speculation_tokens": {"speculation": "ngram"}, "draft_model": {"speculation": "draft"}}
"""Options that are valid only beside another one."""


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("hosting", "image"),
    [
        ("components", "lmi-0.38.0"),
        *(("fused", image) for image in ("lmi-0.38.0", "tensorrtllm-0.33.0", "tgi-3.3.6")),
        *(("endpoint", image) for image in ("lmi-0.38.0", "tensorrtllm-0.33.0", "tgi-3.3.6")),
    ],
)
def test_an_option_changes_the_model_in_each_hosting_or_is_refused_by_name(
    hosting: str,
    image: str,
    base_model: BaseModel,  # noqa: F811
) -> None:
    """All options of one image at once, since a test for each would cost more than it finds."""

    def model(options: Mapping[str, Any]) -> object:
        wanted = {"instance_type": "ml.g5.12xlarge", "hosting": hosting, "image": image, "options": options}
        return cast(tuple[Any, ...], deployed("sagemaker", base_model, **wanted))[3]

    for option, value in OTHERS.items():
        beside = NEEDS.get(option, {}) if image == "lmi-0.38.0" else {}
        changed = outcome(lambda o=option, v=value, b=beside: model({**b, o: v}), option, *beside)  # type: ignore[misc]
        if changed == "refused" or (option == "enable_lora" and hosting != "components"):
            continue
        assert changed != outcome(lambda b=beside: model(b), option, "draft_model"), (  # type: ignore[misc]
            f"options.{option} is accepted for {image} in hosting {hosting} and changes nothing"
        )


def test_the_walk_finds_a_field_that_nothing_reads() -> None:
    assert read_by("worker_engine", {"memory_gib": 1, "never_read_by_anything": 2}) == {"memory_gib": 1}
