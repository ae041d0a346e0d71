"""Fits a coder's temperature and thresholds on records that an agency coded by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mechanisms.model.config import TARGETS
from mechanisms.model.conformal import Sets
from storage.durable import write_atomically
from storage.errors import InputError
from storage.tables.narratives import Narratives
from tasks.bundle.thresholds import best_accuracy, thresholds_on_table
from tasks.coding.coder import Coder
from tasks.coding.joint import JointCoder


def require_field(coder: Coder | JointCoder, field: str, *, option: str) -> Coder:
    """Returns the coder of a field; refuses one that the bundle lacks."""
    if field not in coder.fields:
        several = ", ".join(filter(None, coder.fields))
        remedy = f"Name one of {several}" if several else "Leave it out: there is one field"
        raise InputError(f"{option}: the bundle has no field {field!r}. {remedy}.")
    return coder.fields[field]


def calibrate(
    coder: Coder | JointCoder,
    data: Path,
    records: Narratives,
    out: Path,
    *,
    label: str,
    field: str = "",
    name: str = "own coded records",
    targets: Sequence[float] = (),
    sets: bool = False,
) -> dict[str, Any]:
    """Writes a thresholds file of one field, and returns its content.

    Args:
        name: describes the records to readers.
        targets: accuracies to find a score for; the usual ones by default.
        sets: also finds the limits of conformal sets.

    Raises:
        InputError, MechanismError: the table cannot be read, or has too few records.
    """
    of_field = coder.fields[field]
    fitted = thresholds_on_table(
        of_field.model,
        data,
        columns=records.columns,
        join=records.texts,
        label=label,
        name=name,
        field=field,
        targets=targets or TARGETS,
        sets=sets,
    )
    fitted |= {"release": of_field.release, "bundle_digest": of_field.digest}
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
