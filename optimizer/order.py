"""The JSON order of `run`, and the identity by which two orders are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from contracts.adapters.config import AdapterConfigError
from contracts.adapters.folder import folder_digest
from contracts.adapters.reference import ADAPTER_FILES
from contracts.recipes.compatibility import Stack
from contracts.recipes.model_facts import ModelFacts, Situation, checkpoint_files, files_digest, sha256_of
from contracts.recipes.recipe import Drafting, Engine, Recipe
from contracts.recipes.spec_fields import SpecError, SpecFields
from optimizer.prompt_lines import BUNDLED_PROMPTS

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RunOrder:
    """An order to optimize one checkpoint.

    Attributes:
        source: the checkpoint's folder.
        calibration: JSON lines of texts like the model's future inputs; the bundled ones by default.
        adapter: folder of the adapter to merge into the weights, in PEFT's layout; None for none.
    """

    source: Path
    recipe: Recipe
    situation: Situation
    calibration: Path
    adapter: Path | None = None

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        """Parse the order. Raises SpecError naming the field that is unknown, missing or malformed."""
        fields.version(VERSION)
        calibration = fields.text("calibration", "")
        order = cls(
            Path(fields.text("source")),
            Recipe.read(fields.section("recipe")),
            Situation.read(fields.section("situation")),
            Path(calibration or BUNDLED_PROMPTS),
            Path(fields.text("adapter")) if "adapter" in fields else None,
        )
        fields.end()
        if calibration and not order.calibrates:
            raise SpecError(
                f"calibration is for AWQ, and quantization is {order.recipe.quantization}: leave it out"
            )
        if order.recipe.target.engine is not Engine.LOCAL:
            raise SpecError(
                "recipe.target.engine must be local: SageMaker's jobs are started by its API, not here"
            )
        return order

    @property
    def draft(self) -> Path | None:
        """The draft model's folder; None if the recipe has no local one."""
        named = self.recipe.speculation.draft_model
        return (
            Path(named) if self.recipe.speculation.method is Drafting.DRAFT and "://" not in named else None
        )

    @property
    def calibrates(self) -> bool:
        return self.recipe.calibrates

    def stack(self) -> Stack:
        """Return the stack to check. Raises SpecError where a folder is not a checkpoint."""
        draft = ModelFacts.read(self.draft) if self.draft else None
        facts = ModelFacts.read(self.source)
        return Stack(self.recipe, facts, self.situation, draft, merges=self.adapter is not None)

    @property
    def adapter_sha256(self) -> str | None:
        """Digest of the adapter's files; None without one. Raises SpecError where a file is at fault."""
        if self.adapter is None:
            return None
        try:
            return folder_digest(self.adapter)[1]
        except AdapterConfigError as error:
            raise SpecError(f"adapter: {error}") from error
        except OSError as error:
            raise SpecError(
                f"adapter must be a folder with {' and '.join(ADAPTER_FILES)}: {error.strerror}"
                f" ({error.filename})"
            ) from error

    def identity(self, source_digest: str) -> Mapping[str, Any]:
        """Return everything that determines the output, by content and without paths."""
        draft = (
            files_digest({path.name: sha256_of(path) for path in checkpoint_files(self.draft)})
            if self.draft
            else None
        )
        recipe = self.recipe.to_dict()
        if draft:
            recipe["speculation"]["draft_model"] = f"sha256:{draft}"
        return {
            "source": source_digest,
            "recipe": recipe,
            "calibration": sha256_of(self.calibration) if self.calibrates else None,
            **({"adapter": self.adapter_sha256} if self.adapter else {}),
        }
