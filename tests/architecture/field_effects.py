"""Effects of the fields of forms: request bodies, start-up flags, or attributes that code reads."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from contracts.recipes.recipe import Recipe
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register, base_model_update, variant_create
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.specs import Specs
from controlplane.deployments.services import deployment_create, scaling_set
from controlplane.deployments.targets.services import target_create
from controlplane.errors import InvalidInputError
from controlplane.optimization.models import OptimizationJob
from controlplane.optimization.recipes import recipe_read, recipe_refusals
from controlplane.optimization.sagemaker.checks import remote_options_check
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.sagemaker.request import configs, create_request, serving_environment
from controlplane.optimization.serving import compiled_image, device_options, speculation_options

ROOT = Path(__file__).resolve().parents[2]
ROLE = "arn:aws:iam::123456789012:role/endpoints"
ACCOUNT: Final = {"region": "eu-central-1", "role_arn": ROLE, "store": "s3://our-models/graft"}
TARGETS: Final[dict[str, dict[str, Any]]] = {
    "sagemaker": ACCOUNT,
    "local": {"host": "here", "address": "127.0.0.1"},
    "openai_http": {"urls": ["http://vllm:8000"]},
}


@functools.cache
def attributes_read(package: str) -> frozenset[str]:
    """Names of the attributes that a package's code reads, such as `routing` in `policy.routing`.

    Checks at a class's creation do not count: a value that is only checked has no effect.
    """
    found = set[str]()
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        checks = [node for node in ast.walk(tree) if getattr(node, "name", "") == "__post_init__"]
        for check in checks:
            check.body.clear()  # type: ignore[attr-defined]
        found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(found)


def read_by(package: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the package's code reads."""
    return {name: value for name, value in values.items() if name in attributes_read(package)}


def target_of(kind: str) -> Target:
    kind = kind.split()[0]
    name = kind.replace("_", "-")
    return Target.objects.filter(name=name).first() or target_create(name=name, kind=kind, **TARGETS[kind])


def deployed(kind: str, base: BaseModel, **values: Any) -> object:
    """Return the provisioner's output: request bodies, a worker's flags, or a server's URLs."""
    row = deployment_create(
        name=values.pop("name", "walk"), target=target_of(kind), base_model=base, **values
    )
    desired = desired_of(row)
    copies = (desired.min_copies, desired.max_copies, row.adapter_scope, row.hosting)
    if kind.startswith("local"):
        from controlplane.deployments.provisioners.local.engines import engine_of

        engine = engine_of(desired.image_family)
        return row.name, copies, engine.flags(desired), engine.variables(desired)
    if kind == "openai_http":
        # Consolidation reads the options as the servers' capacity.
        return row.name, copies, desired.urls, row.options
    account = cast(Any, SimpleNamespace(s3=None))
    specs = Specs.from_target(row.target, desired, Store(account, row.target, heartbeat=lambda: None))
    return specs.names.base, specs.names.endpoint, copies, specs.model, specs.config, specs.requirements


def recipe_effect(context: str, base: BaseModel, recipe: Mapping[str, Any]) -> object:
    """Return SageMaker's request and the served options, or the fields that the optimizer reads."""
    read = recipe_read(recipe)
    if refusals := recipe_refusals(read, base):
        raise InvalidInputError("; ".join(reason.text for reason in refusals), field="recipe")
    if read.target.engine == "sagemaker":
        options = RemoteOptions("aws")
        bodies = configs(read, options, region="eu-central-1", max_model_len=256, training="")
        served = speculation_options(read) | device_options(read, 256)
        return bodies, served, compiled_image(read, ""), serving_environment(read), read.target
    flat = {f"{name}.{key}": item for name, section in sections(read) for key, item in section.items()}
    reads = attributes_read("optimizer") | attributes_read("contracts/recipes")
    return {name: value for name, value in flat.items() if name.rpartition(".")[2] in reads}


def sections(recipe: Recipe) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, value in recipe.to_dict().items():
        yield name, value if isinstance(value, dict) else {name: value}


REMOTE_RECIPES: Final[dict[str, dict[str, Any]]] = {
    "quantization": {"quantization": "awq_int4_g128"},
    "TensorRT-LLM": {"compilation": {"ahead_of_time": True}},
    "Neuron": {
        "compilation": {"ahead_of_time": True},
        "target": {"engine": "sagemaker", "hardware": "neuron", "instance_type": "ml.inf2.48xlarge"},
    },
    "EAGLE": {"speculation": {"method": "eagle"}},
    "n-grams": {"speculation": {"method": "ngram"}},
}
G5: Final = {"engine": "sagemaker", "hardware": "sm86", "instance_type": "ml.g5.12xlarge"}


def remote_effect(context: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    """The request of CreateOptimizationJob, or the variant's source if the recipe needs no job."""
    recipe = recipe_read({"target": G5, **REMOTE_RECIPES[context]})
    options = RemoteOptions.read({"target": "sagemaker", **values})
    remote_options_check(recipe, options, region="eu-central-1", max_model_len=256)
    target = target_of("sagemaker")
    if not configs(recipe, options, region="eu-central-1", max_model_len=256, training=""):
        return options.model or options.weights or base.source
    job = OptimizationJob(pk=1, base_model=base, recipe=recipe.to_dict())
    weights = "" if options.model else options.weights or "s3://store/own/"
    return create_request(job, target, options, weights=weights, output="s3://store/out/", training="")


def target_effect(kind: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    given = {"name": "walk", **TARGETS[kind], **values}
    target = target_create(kind=kind, **given)
    package = "controlplane/deployments/provisioners"
    part = f"{package}/{kind}" if kind != "openai_http" else package
    stored = {name: getattr(target, name) for name in given if name not in ("token", "headers")}
    return target.name, read_by(part, {**stored, "credentials": target.credentials.to_json()})


def base_effect(context: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    """Return the flags of a deployment of the base model."""
    made = base_model_register(**{"name": "walked", "source": base.source, **values})
    return made.name, cast(Any, deployed("local", made))[2:]


def change_effect(context: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    row = base_model_update(base_model=base, **values)
    return {
        "max_lora_rank": row.max_lora_rank
        if "max_lora_rank" in attributes_read("controlplane/adapters")
        else 0,
        "dropped": row.dropped_parameters,
        "token": bool(row.sealed_hub_token),
    }


def variant_effect(context: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    given = {"name": "walked", "dtype": "bfloat16", "source": base.source, **values}
    variant = variant_create(base_model=base, **given)
    return cast(Any, deployed("local", base, variant=variant.name))[2:], variant.name


def scaling_effect(kind: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    row = deployment_create(
        name="walk", target=target_of(kind), base_model=base, max_copies=4, **DEPLOYED[kind]
    )
    scaling_set(deployment=row, **{"target": 4.0, **values})
    row.refresh_from_db()
    policy = cast(Any, desired_of(row).scaling)
    given = {item.name: getattr(policy, item.name) for item in fields(policy)}
    package = "provisioners/sagemaker" if kind.startswith("sagemaker") else "autoscaler"
    # Gateways hold requests, and the policy itself applies its schedule, for every kind of target.
    shared = attributes_read("controlplane/deployments/scaling") | attributes_read("controlplane/catalog")
    own = attributes_read(f"controlplane/deployments/{package}")
    return {name: value for name, value in given.items() if name in own | shared}


def worker_effect(context: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    return read_by("worker_engine", values)


DEPLOYED: Final[dict[str, dict[str, Any]]] = {
    "sagemaker": {"instance_type": "ml.g5.12xlarge"},
    "local": {},
    "local vLLM": {"image_family": "vllm"},
    "openai_http": {},
    "sagemaker endpoint": {"instance_type": "ml.g5.12xlarge", "hosting": "endpoint"},
}
"""What a deployment needs anyway, by kind of target and hosting."""


def deployed_effect(kind: str, base: BaseModel, values: Mapping[str, Any]) -> object:
    if "variant" in values:
        variant_create(base_model=base, name="smaller", dtype="int8", source="/models/smaller")
    return deployed(kind, base, **values)
