"""Write docs/models.md: `python -m tests.parity.corpus`, or the rows of some architectures by their names."""

from __future__ import annotations

import os
import sys


def main(names: list[str]) -> None:
    """Examine the named architectures, all without names; write the page where all are examined."""
    # Django must be set up before the product's modules are imported.
    from tests.parity import references
    from tests.parity.corpus.models import architectures
    from tests.parity.corpus.table import PATH, examine_all, render

    references.load()
    chosen = [item for item in architectures() if not names or item.name in names]
    rows = examine_all(chosen)
    for row in rows:
        faults = [*(f"{part}: {reason}" for part, reason in row.refused.items()), *row.accepted]
        for fault in [row.problem] * bool(row.problem) + faults:
            print(f"{row.architecture.name}: {fault}", file=sys.stderr)
    if names:
        print(render(rows))
    else:
        PATH.write_text(render(rows), encoding="utf-8")


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    main(sys.argv[1:])
