"""`presets`: applies every preset for a kind of machine to one checkpoint and compares the results.

The resulting file backs every claim about presets: recipes, digests of the outputs, the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from contracts.recipes.progress import Code, JobError, Reporter
from contracts.recipes.recipe import Preset, Recipe, preset
from contracts.recipes.spec_fields import SpecFields
from optimizer import job
from optimizer.measurement import compare as comparison
from optimizer.measurement.comparison_order import ComparisonOrder
from optimizer.order import RunOrder
from optimizer.output_folder import write_json

VERSION: Final = 1
SCHEMA: Final = "graftwork.optimization.presets/1"
PHASES: Final = (*(job.PHASES * len(Preset)), *comparison.PHASES)
ORIGINAL: Final = "original"


class PresetsOrder:
    """`source`, `target` (local); `adapters`, `load`, `quality`, `price` and `seed` as in `compare`."""

    def __init__(self, fields: SpecFields) -> None:
        """Raises SpecError naming the field that is unknown, missing or malformed."""
        fields.version(VERSION)
        self.source = Path(fields.text("source"))
        target = Recipe.from_dict({"version": 1, "target": fields.get("target") or {}}).target
        self.recipes = {name: preset(name, target) for name in Preset}
        shared = ("adapters", "load", "quality", "price", "seed")
        self._comparison = {name: value for name in shared if (value := fields.get(name)) is not None}
        fields.end()
        # Refuse invalid orders before hours of work rather than after them.
        self.comparison({name: {"model": ".", "flags": [], "environment": {}} for name in Preset})
        for name in Preset:
            self.run(name)

    def run(self, name: Preset) -> RunOrder:
        order = {"version": 1, "source": str(self.source), "recipe": self.recipes[name].to_dict()}
        return RunOrder.read(SpecFields("", order))

    def comparison(self, served: Mapping[Preset, Mapping[str, Any]]) -> ComparisonOrder:
        """Return the order that compares the original with each preset's output."""
        arms = [{"name": ORIGINAL, "model": str(self.source)}]
        arms += [{"name": name.value, **how} for name, how in served.items()]
        return ComparisonOrder.read(SpecFields("", {"version": 1, "arms": arms, **self._comparison}))


def measure_presets(order: PresetsOrder, output: Path, reporter: Reporter) -> Mapping[str, Any]:
    """Write `output`. The presets' outputs go to `OUTPUT.work` and are kept for the next try.

    Raises:
        JobError, SpecError, Cancelled: as `run` and `compare` do.
    """
    if output.exists():
        raise JobError(
            Code.OUTPUT_EXISTS, f"{output} is there already: choose another --output, or delete it"
        )
    work = output.with_name(f"{output.name}.work")
    made = {}
    for name in Preset:
        reporter.log(f"carrying out {name.value}")
        made[name] = job.run(order.run(name), work / name.value, reporter)
    served = {name: _served(work / name.value, result["serve"]) for name, result in made.items()}
    compared = work / "comparison.json"
    compared.unlink(missing_ok=True)
    comparison.compare(order.comparison(served), compared, reporter)
    stored = {
        "schema": SCHEMA,
        "presets": {
            name.value: {
                "recipe": order.recipes[name].to_dict(),
                "recipe_digest": order.recipes[name].digest,
                "output_digest": made[name]["digest"],
                "bytes": made[name]["bytes"],
            }
            for name in Preset
        },
        "comparison": json.loads(compared.read_text(encoding="utf-8")),
    }
    write_json(output, stored)
    return {"output": str(output), "presets": stored["presets"]}


def _served(folder: Path, serve: Mapping[str, Any]) -> dict[str, Any]:
    """Return an arm's fields; paths in `serve` are relative to the output."""
    environment = {name: str((folder / value).resolve()) for name, value in serve["environment"].items()}
    return {"model": str(folder / serve["model"]), "flags": serve["flags"], "environment": environment}
