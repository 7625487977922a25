"""Builds contracts/capabilities/vllm.json from unpacked wheels of vLLM: `python -m ... FOLDER > vllm.json`.

FOLDER holds one folder for each version, named after it, with the wheel's content (`vllm/...`). The facts are
read from vLLM's source text, never by importing it:

- architectures and their classes: model_executor/models/registry.py, by category;
- with LoRA: the class inherits SupportsLoRA; LoRA on embeddings: `embedding_modules` is not empty;
- stacked experts: `is_3d_moe_weight`; LoRA on vision and audio towers: the class counts their tokens;
- quantizations: QuantizationMethods; ranks: MaxLoRARanks; parameters: fields of the request classes.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

_CATEGORIES: Final = (
    "_TEXT_GENERATION_MODELS",
    "_EMBEDDING_MODELS",
    "_LATE_INTERACTION_MODELS",
    "_REWARD_MODELS",
    "_TOKEN_CLASSIFICATION_MODELS",
    "_SEQUENCE_CLASSIFICATION_MODELS",
    "_CROSS_ENCODER_MODELS",
    "_MULTIMODAL_MODELS",
    "_TRANSFORMERS_SUPPORTED_MODELS",
)
_REQUESTS: Final = {"chat": "ChatCompletionRequest", "completions": "CompletionRequest"}
_TOWER: Final = frozenset({"get_num_mm_encoder_tokens", "get_mm_lora_token_counts"})
Class = tuple[str, str]
"""Module under model_executor/models, and the class's name there."""


@dataclass(frozen=True)
class Release:
    """The source of one version."""

    version: str
    root: Path

    @property
    def _models(self) -> Path:
        return self.root / "vllm" / "model_executor" / "models"

    @cached_property
    def architectures(self) -> dict[str, Class]:
        """Module and class by architecture."""
        found: dict[str, Class] = {}
        for node in _parse(self._models / "registry.py").body:
            names = [target.id for target in _targets(node) if isinstance(target, ast.Name)]
            if names and names[0] in _CATEGORIES and isinstance(node, ast.Assign | ast.AnnAssign):
                found |= _entries(node.value)
        return found

    def traits(self, architecture: str) -> set[str]:
        """Return the facts of an architecture: served, lora, embedding, stacked, tower."""
        classes = list(self._ancestors(self.architectures[architecture]))
        names = {name for _, name in classes}
        found = {"served"}
        if "SupportsLoRA" not in names:
            return found
        found.add("lora")
        bodies = [node for key in classes if (node := self._classes(key[0]).get(key[1])) is not None]
        values = {name: value for node in reversed(bodies) for name, value in _attributes(node)}
        methods = {item.name for node in bodies for item in node.body if isinstance(item, ast.FunctionDef)}
        if isinstance(modules := values.get("embedding_modules"), ast.Dict) and modules.keys:
            found.add("embedding")
        if isinstance(flag := values.get("is_3d_moe_weight"), ast.Constant) and flag.value is True:
            found.add("stacked")
        if methods & _TOWER and self.has_tower_flag:
            found.add("tower")
        return found

    @cached_property
    def has_tower_flag(self) -> bool:
        return "enable_tower_connector_lora" in self._config

    @cached_property
    def ranks(self) -> list[int]:
        text = re.search(r"(?:MaxLoRARanks = Literal\[|possible_max_ranks = \()([0-9, ]+)", self._config)
        if text is None:
            raise ValueError(f"vLLM {self.version} states no ranks")
        return [int(part) for part in text[1].split(",")]

    @cached_property
    def quantizations(self) -> set[str]:
        path = self.root / "vllm" / "model_executor" / "layers" / "quantization" / "__init__.py"
        text = re.search(r"QuantizationMethods = Literal\[(.*?)\n\]", path.read_text(), re.DOTALL)
        if text is None:
            raise ValueError(f"vLLM {self.version} states no quantizations")
        return set(re.findall(r'^\s*"([a-z0-9_-]+)"', text[1], re.MULTILINE))

    def parameters(self, request: str) -> set[str]:
        """Return the fields of a request class."""
        for path in (self.root / "vllm" / "entrypoints" / "openai").rglob("protocol.py"):
            for node in _parse(path).body:
                if isinstance(node, ast.ClassDef) and node.name == _REQUESTS[request]:
                    return {
                        name for name, _ in _attributes(node) if not name.startswith(("_", "model_config"))
                    }
        raise ValueError(f"vLLM {self.version} has no class {_REQUESTS[request]}")

    @cached_property
    def _config(self) -> str:
        files = (self.root / "vllm").glob("config*/**/*.py")
        return "\n".join(path.read_text() for path in [*files, *(self.root / "vllm").glob("config.py")])

    def _ancestors(self, key: Class) -> Iterator[Class]:
        """Yield the class and its ancestors in the models' folder."""
        waiting, seen = [key], set()
        while waiting:
            module, name = current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            yield current
            node = self._classes(module).get(name)
            if node is None:
                imported = self._imports(module).get(name)
                waiting += [imported] if imported else []
                continue
            waiting += [(module, base) for base in map(_base_name, node.bases) if base]

    @cache  # noqa: B019 - a release lives as long as the program
    def _classes(self, module: str) -> Mapping[str, ast.ClassDef]:
        return {node.name: node for node in self._module(module).body if isinstance(node, ast.ClassDef)}

    @cache  # noqa: B019 - as above
    def _imports(self, module: str) -> Mapping[str, Class]:
        found: dict[str, Class] = {}
        package = "" if self._path(module).name != "__init__.py" else f"{module}."
        for node in ast.walk(self._module(module)):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            source = node.module.removeprefix("vllm.model_executor.models.")
            source = f"{package}{source}" if node.level == 1 else source
            found |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
        return found

    def _module(self, module: str) -> ast.Module:
        path = self._path(module)
        return _parse(path) if path.is_file() else ast.Module([], [])

    def _path(self, module: str) -> Path:
        path = self._models / module.replace(".", "/")
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for item in node.body:
        for target in _targets(item):
            if isinstance(target, ast.Name) and isinstance(item, ast.Assign | ast.AnnAssign):
                yield target.id, item.value


def _base_name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")


def _entries(value: ast.expr | None) -> dict[str, Class]:
    found: dict[str, Class] = {}
    for key, item in zip(getattr(value, "keys", []), getattr(value, "values", []), strict=True):
        if isinstance(key, ast.Constant) and isinstance(item, ast.Tuple):
            module, name = (part.value for part in item.elts if isinstance(part, ast.Constant))
            found[str(key.value)] = (str(module), str(name))
    return found


def _span(versions: list[str], has: Callable[[str], bool]) -> str:
    """Return `since`, or `since..before`, of the versions that have a fact; several are joined by commas."""
    spans: list[list[str]] = []
    open_ = False
    for version in versions:
        if has(version) and not open_:
            spans.append([version])
        elif open_ and not has(version):
            spans[-1].append(version)
        open_ = has(version)
    return ",".join("..".join(span) for span in spans)


def _spans(facts: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the span of each name in the sets of names by version."""
    sets = {version: set(names) for version, names in facts.items()}
    versions = list(sets)
    names = sorted(set().union(*sets.values()))
    return {name: _span(versions, lambda version, name=name: name in sets[version]) for name in names}  # type: ignore[misc]


def table(releases: list[Release]) -> dict[str, Any]:
    """Return the table of the releases, which are in order."""
    facts: dict[str, dict[str, set[str]]] = {}
    for release in releases:
        for architecture in release.architectures:
            facts.setdefault(architecture, {})[release.version] = release.traits(architecture)
    versions = [release.version for release in releases]
    return {
        "source": "vLLM's source text in the wheels of these versions, read by "
        "tests/contracts/capabilities/vllm_table.py",
        "versions": versions,
        "ranks": _spans({item.version: map(str, item.ranks) for item in releases}),
        "quantizations": _spans({item.version: item.quantizations for item in releases}),
        "parameters": {
            request: _spans({item.version: item.parameters(request) for item in releases})
            for request in _REQUESTS
        },
        "architectures": {
            name: _spans({version: by.get(version, set()) for version in versions})
            for name, by in sorted(facts.items())
        },
    }


def main() -> None:
    folders = [path for path in Path(sys.argv[1]).iterdir() if path.is_dir()]
    folders.sort(key=lambda path: tuple(map(int, path.name.split("."))))
    value = table([Release(path.name, path) for path in folders])
    lines = [
        f" {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items() if key != "architectures"
    ]
    rows = [f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value["architectures"].items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + ',\n "architectures": {\n' + ",\n".join(rows) + "\n }\n}\n")


if __name__ == "__main__":
    main()
