"""`python -m benchmarks.chaos`: 2,000 streams, 50 kills; prints the account, exit status 1 when it is wrong.

    python -m benchmarks.chaos [--streams N] [--kills N] [--at-once N] [--seed N] [--postgres URL]
        [--worker FOLDER] [--keep]

`--postgres` is a server on which the run makes a database of its own, and takes it away by outages too;
without it SQLite is used. `--worker` is a checkpoint that one backend of two serves by a real
worker. `--keep` writes benchmarks/results/chaos.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS
from benchmarks.chaos.database import fresh_database
from benchmarks.chaos.run import Outcome, run
from worker_engine.machine import facts


def account(outcome: Outcome) -> dict[str, Any]:
    """The figures, by name."""
    verdict = outcome.verdict
    return {
        "streams seen": verdict.streams,
        "ended": dict(sorted(verdict.ends.items())),
        "refused and sent again": dict(sorted(outcome.refused.items())),
        "kills": outcome.kills.total(),
        "of": dict(sorted(outcome.kills.items())),
        "billed once": verdict.once,
        "billed twice": len(verdict.twice),
        "never billed": len(verdict.never),
        "billed less than seen": len(verdict.under),
        "billed more than generated": len(verdict.over),
        "billed otherwise": len(verdict.unlike),
        "events in the database": len(outcome.bill.rows),
        "dead letters": len(outcome.bill.dead),
        "daily sums agree": outcome.bill.sums_agree,
        "tokens seen": verdict.seen_tokens,
        "tokens billed": verdict.billed_tokens,
        "tokens generated": verdict.generated_tokens,
        "tokens seen and not billed, in last seconds": verdict.unbilled_tokens,
        "the earliest of them before its kill, s": round(verdict.longest_unbilled, 3),
        "seconds": round(outcome.seconds),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", default="", metavar="URL")
    parser.add_argument("--worker", type=Path, metavar="FOLDER")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="graftwork-chaos-") as name:
        folder = Path(name)
        with fresh_database(options.postgres, folder) as url:
            outcome = asyncio.run(
                run(
                    folder,
                    url,
                    streams=options.streams,
                    kills=options.kills,
                    at_once=options.at_once,
                    seed=options.seed,
                    outages=bool(options.postgres),
                    worker=options.worker,
                )
            )
    figures = account(outcome)
    for label, figure in figures.items():
        print(f"{label:46} {figure if not isinstance(figure, dict) else json.dumps(figure)}")
    for fault in outcome.faults[:40]:
        print(f"WRONG {fault}")
    if options.keep:
        database = "postgresql" if options.postgres else "sqlite"
        result = {
            "machine": facts(),
            "seed": options.seed,
            "database": database,
            "worker": bool(options.worker),
            "figures": figures,
        }
        (RESULTS / "chaos.json").write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
