"""Measures how often the figures from a noisy table of held-out records hold, by ε, size and shape
of the scores.

Claim: the accuracy, overall and of the reported groups, is within its interval in 95% of
tables. Thresholds and limits of sets fail their target in at most 5%. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from stated_tables import SHAPES, Holds, simulated

EPSILONS, SIZES = (0.25, 0.5, 1.0, 2.0, 5.0, 8.0), (200, 400, 1000, 4000, 20_000)
TARGETS, COVERAGES = (0.8, 0.9, 0.95), (0.8, 0.85, 0.9, 0.95, 0.98, 0.99)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000, help="tables per case (default: 1000)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    rows = []
    for epsilon in EPSILONS:
        for size in SIZES:
            for shape in SHAPES:
                tables = simulated(epsilon, size, shape, trials=options.trials, seed=1)
                case = {"epsilon": epsilon, "size": size, "shape": shape}
                rows.append(case | asdict(Holds.of(tables, TARGETS, COVERAGES)))
    said = json.dumps({"trials": options.trials, "cases": rows}, indent=1)
    print(said)
    if options.json:
        options.json.write_text(said + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
