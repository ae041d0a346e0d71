"""Fits a coder's temperature and thresholds on records that an agency coded manually."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mechanisms.model.config import TARGETS
from mechanisms.model.conformal import Sets
from storage.durable import write_atomically
from storage.tables.narratives import Narratives
from tasks.bundle.thresholds import best_accuracy, thresholds_on_table
from tasks.coding.coder import Coder


def calibrate(
    coder: Coder,
    data: Path,
    records: Narratives,
    out: Path,
    *,
    label: str,
    name: str = "own coded records",
    targets: Sequence[float] = (),
    sets: bool = False,
    **how: Any,
) -> dict[str, Any]:
    fitted = thresholds_on_table(
        coder.model,
        data,
        columns=records.columns,
        join=records.texts,
        label=label,
        name=name,
        targets=targets or TARGETS,
        sets=sets,
        **how,
    )
    fitted |= {"release": coder.release, "bundle_digest": coder.digest}
    write_atomically(out, json.dumps(fitted, indent=2).encode() + b"\n", source=data)
    return fitted


def lines(fitted: Mapping[str, Any]) -> Iterator[str]:
    """Yields the thresholds in words: a line an accuracy, the best one, a line a coverage of sets."""
    for entry in fitted["thresholds"]:
        start = f"{100 * entry['target_accuracy']:g} % right: "
        if entry["threshold"] is None:
            yield start + "no score reaches it with confidence"
        else:
            yield start + f"score {entry['threshold']:.3f} and above, {entry['coverage']:.0%} of the records"
    yield best_accuracy(fitted)
    for entry in fitted.get("sets", {}).get("coverages", ()):
        yield Sets.of(entry).statement
