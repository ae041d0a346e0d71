#!/usr/bin/env python
"""Writes docs/images.md (SAD-DPSGD, its rivals and controls on images) from outputs of `autocoder compare --json`.

    python scripts/images_page.py --out docs/images.md --results docs/images/results.json [PROFILE-EPSILON.json …]

Files are named by profile and epsilon, such as digits-3.json. Their aggregates are saved in `--results`, from which
alone the page is written: without a file it is written anew. What a person adds stands in docs/images.notes.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.durable import write_atomically
from tasks.catalogue import PUBLISHED
from tasks.pages.render import Table, notes_beside, render

METRICS = ("balanced_accuracy", "accuracy", "macro_f1", "support_20_49_macro_recall")
ORDER = ("non-private", "dp-sgd-tuned", "auto-s", "auto-l", "sad", "sad-level-clip", "dp-sgd-larger-clip")
SHORT = ("constant-20-steps", "sad-20-steps", "sad-level-clip-20-steps", "larger-clip-20-steps")
QUESTIONS = (
    ("sad", "dp-sgd-tuned", "SAD above constant"),
    ("sad", "auto-s", "SAD above Auto-S"),
    ("sad", "auto-l", "SAD above Auto-L"),
    ("sad", "sad-level-clip", "SAD above itself with a = 1: the clip"),
    ("sad-level-clip", "dp-sgd-tuned", "SAD with a = 1 above constant: the schedule of the noise"),
    ("sad", "dp-sgd-larger-clip", "SAD above constant with the larger clip"),
)
Result = Mapping[str, Mapping[str, Any]]
"""By branch: title, seeds, delta, and mean and spread of the metrics."""


def aggregates_of(content: Mapping[str, Any]) -> Result:
    """Aggregates of one comparison."""
    return {
        row["branch"]: {
            "title": row["title"],
            "seeds": row["seeds"],
            "delta": row["delta"],
            **{name: [row["mean"][name], row["spread"][name]] for name in METRICS if name in row["mean"]},
        }
        for row in content["branches"]
    }


def verdict(result: Result, higher: str, lower: str, measure: str = "balanced_accuracy") -> str:
    """A gap counts where it is more than twice the root of the two variances over seeds together, which single runs
    would show; and the gap of the means in standard errors, which only several do."""
    (a, above), (b, below) = result[higher][measure], result[lower][measure]
    error = math.sqrt(above**2 / result[higher]["seeds"] + below**2 / result[lower]["seeds"])
    holds = "within the spread" if abs(a - b) <= 2 * math.hypot(above, below) else "holds" if a > b else "**not so**"
    return f"{a:.3f} to {b:.3f}, {holds}" + (f" ({(a - b) / error:+.1f})" if error else "")


def table(results: Mapping[str, Result], names: tuple[str, ...], measure: str = "balanced_accuracy") -> Table | None:
    """Branches against epsilons; None without results."""
    if not results:
        return None
    rows = []
    for name in names:
        if any(name in result for result in results.values()):
            title = next(result[name]["title"] for result in results.values() if name in result)
            cells = [
                "{:.3f} ± {:.3f}".format(*result[name][measure]) if name in result else "–"
                for result in results.values()
            ]
            rows.append([title, *cells])
    return ["branch", *(f"ε {epsilon}" for epsilon in results)], rows


def delta_of(results: Sequence[Mapping[str, Result]]) -> str:
    """Returns the delta that the private branches of all profiles share.

    Raises:
        SystemExit: they differ.
    """
    rows = [row for profile in results for result in profile.values() for row in result.values()]
    deltas = {f"{row['delta']:g}" for row in rows if row["delta"] is not None}
    if len(deltas) > 1:
        raise SystemExit(f"the files have several δ: {', '.join(sorted(deltas))}. Run all with one --delta")
    return next(iter(deltas), "–")


def answers(results: Mapping[str, Result]) -> Table | None:
    """Each question at each epsilon."""
    if not results:
        return None
    rows = [
        [what, *(verdict(result, a, b) if a in result and b in result else "–" for result in results.values())]
        for a, b, what in QUESTIONS
    ]
    return ["question", *(f"ε {epsilon}" for epsilon in results)], rows


def published() -> Table:
    """Huang and Xie's table II: accuracy in percent on HAM10000, apparently one run each."""
    with (PUBLISHED / "huang-xie-table2.csv").open(encoding="utf-8", newline="") as file:
        rows = [[row.pop("branch"), *row.values()] for row in csv.DictReader(file)]
    return ["branch", "ε 3", "ε 8", "ε 16"], rows


def main() -> None:
    """Saves the aggregates of the files, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = json.loads(given.results.read_text()) if given.results.is_file() else {}
    for file in given.files:
        profile, _, epsilon = file.stem.rpartition("-")
        results.setdefault(profile, {})[epsilon] = aggregates_of(json.loads(file.read_text()))
    runs = {
        profile: dict(sorted(by_epsilon.items(), key=lambda item: float(item[0])))
        for profile, by_epsilon in results.items()
    }
    write_atomically(given.results, json.dumps(runs, indent=1, ensure_ascii=False).encode() + b"\n")
    linear, network = runs.get("digits", {}), runs.get("digits-convolutional", {})
    text = render(
        "images.md",
        delta=delta_of([linear, network, runs.get("digits-short", {})]),
        linear=table(linear, ORDER),
        network=table(network, ORDER),
        answers=answers(linear),
        network_answers=answers(network),
        tail=table(linear, ORDER, "support_20_49_macro_recall"),
        short=table(runs.get("digits-short", {}), SHORT),
        lesions=table(runs.get("ham", {}), ORDER, "accuracy"),
        lesions_balanced=table(runs.get("ham", {}), ORDER),
        published=published(),
        notes=notes_beside(given.out),
    )
    write_atomically(given.out, text.encode())


if __name__ == "__main__":
    main()
