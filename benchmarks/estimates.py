"""Measures how often the intervals of `autocoder estimate` cover the true count, by design and by
sampled rows of a code.

Claim: 90 to 97% if the sample has at least five rows of the code. The earlier intervals (one
disagreement added to each stratum) and intervals without any addition do not. If `ppi-python` is
installed (in a separate environment), its intervals for the same samples are included. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import coded_populations as populations
from coded_populations import BINS, Design, Population

from tasks.coding.estimates import Sample

DESIGNS = (
    Design("simple"),
    Design("simple", error=0.3, scores=False),
    Design("simple", error=0.05, scores=False),
    Design("simple", error=0.1, odd=True),
    Design("strata"),
    Design("strata", error=0.3, scores=False),
    Design("strata", error=0.05),
    Design("strata", size=200, error=0.3),
    Design("strata", odd=True),
    Design("strata", size=1000, rows=20_000, codes=120),
    Design("sensitive", size=300),
)

_PPI = 3
"""Number of samples per population for ppi_py, which takes ten times as long."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draws", type=int, default=20, help="samples of each population (default: 20)"
    )
    parser.add_argument("--populations", type=int, default=20, help="per design (default: 20)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    rows = []
    for design in DESIGNS:
        rows.append(asdict(design) | coverage(design, options.populations, options.draws))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    said = json.dumps(
        {"draws": options.draws, "populations": options.populations, "designs": rows}, indent=1
    )
    print(said)
    if options.json:
        options.json.write_text(said + "\n", encoding="utf-8")


def coverage(design: Design, several: int, draws: int) -> dict[str, Any]:
    """Returns, by method and bin, the share of intervals that cover, their mean
    width and their number.
    """
    rng = np.random.default_rng(0)
    cells: defaultdict[tuple[str, int], list[tuple[bool, float]]] = defaultdict(list)
    for population in (design.population(rng) for _ in range(several)):
        true = population.counts(population.true)
        for draw, sample in enumerate(population.samples(rng, draws)):
            for code, seen, method, low, high in intervals(population, sample, ppi=draw < _PPI):
                number = next(n for n, (_, most) in enumerate(BINS) if seen <= most)
                cells[method, number].append((low - 1e-9 <= true[code] <= high + 1e-9, high - low))
    found: dict[str, Any] = defaultdict(dict)
    for (method, number), hits in sorted(cells.items()):
        covers, widths = np.array(hits).mean(0)
        least, most = BINS[number]
        name = f"{least} and more" if most > 10**6 else f"{least} to {most}"
        found[method][name] = {
            "covers": round(covers, 3),
            "width": round(widths, 1),
            "intervals": len(hits),
        }
    return dict(found)


def intervals(
    population: Population, sample: Sample, *, ppi: bool = False
) -> Iterator[tuple[int, int, str, float, float]]:
    """Yields code, sampled rows, method and interval."""
    machine, all_rows = population.counts(population.model), np.ones(len(sample.human), dtype=bool)
    theirs: Any = (
        importlib.import_module("ppi_py") if ppi and importlib.util.find_spec("ppi_py") else None
    )
    for code, count in enumerate(machine.tolist()):
        y, f = sample.human == code, sample.model == code
        if not (seen := int((y | f).sum())):
            continue
        interval = sample.count(code, all_rows, machine=count, rows=len(population.true))
        yield code, seen, "this", interval.low, interval.high
        for method, added in (("before", True), ("nothing added", False)):
            yield code, seen, method, *populations.symmetric(sample, y, f, count, added=added)
        if theirs:
            rows, weights = len(population.true), {"w": sample.weights / sample.weights.mean()}
            predicted = (population.model == code).astype(float)
            low, high = theirs.ppi_mean_ci(
                y.astype(float), f.astype(float), predicted, alpha=0.05, **weights
            )
            yield code, seen, "ppi_py", float(low[0]) * rows, float(high[0]) * rows


if __name__ == "__main__":
    main()
