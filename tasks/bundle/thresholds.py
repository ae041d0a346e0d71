"""Calibrates a released model's scores: fits a temperature, and the scores above which answers
reach an accuracy.

The `thresholds.json` of a bundle comes from the noisy table of the held-out records that was
released with the model. A release without such a table has no thresholds. The demo is an exception:
its thresholds come from generated narratives, like its records. Partners with manually coded
records can fit a local file (`autocoder adopt --data`).
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.errors import MechanismError
from mechanisms.model.config import SCHEMA, TARGETS
from mechanisms.model.conformal import Sets, sets_for
from mechanisms.model.scorer import Scorer
from mechanisms.thresholds_file import FITTED_ON, Thresholds, fitted_on
from storage.egress.public_lists import published_name
from storage.spelling import human_codes
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import pieces, survey
from tasks.running import progress

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.model.export import Released
    from mechanisms.privacy.stated_accuracy import StatedAccuracy
    from storage.codelist import Code

_GENERATED, _GENERATED_SEED = 800, 20260102
TEMPERATURES = (0.01, 100.0)
"""Outside this range scores are all 0 or 1, or NaN. A fitted temperature is from 0.05 to 20."""
_DEMO = "demo-data"
"""Published code list of the demo's records."""


def thresholds_of(stated: StatedAccuracy) -> Thresholds:
    """Returns the thresholds and sets from a table, for scores to which its temperature has already
    been applied.
    """
    from mechanisms.privacy.stated_accuracy import CONFIDENCE

    records = round(stated.records)
    content: Thresholds = {
        "schema": SCHEMA,
        "temperature": 1.0,
        "thresholds": list(stated.thresholds),
        "reached": stated.reached,
        "fitted_on": "released-table",
        "records": records,
        "confidence": CONFIDENCE,
    }
    if stated.sets:
        content["sets"] = {"records": records, "coverages": list(stated.sets)}
    return content


def thresholds_on_generated(
    released: Released,
    codes: Sequence[Code],
    *,
    score: Callable[[Released, Sequence[str]], Tensor] | None = None,
) -> Thresholds | None:
    """Fits `thresholds_for` the demo's model on generated narratives. Returns None for any other
    code list.

    The narratives are generated from a fixed seed that the demo's records do not use, and depend on
    no record.

    Args:
        score: computes the model's scores of texts; by default with the model's encoder.
    """
    # guard: test_thresholds_of_generated_narratives_are_the_demos_alone
    if published_name(codes) != _DEMO:
        return None
    from mechanisms.model.calibration import thresholds_for

    place = {code: number for number, code in enumerate(released.codes)}
    rows = [(row["Final Narrative"], place.get(row["Nature"], -1)) for row in _generated()]
    labels = np.array([label for _, label in rows])
    if (labels >= 0).mean() < 0.5:
        return None
    texts = [text for text, _ in rows]
    logits = released.logits(texts) if score is None else score(released, texts)
    return thresholds_for(
        logits,
        labels,
        fitted_on="generated",
    )


@cache
def _generated() -> list[dict[str, str]]:
    from storage.demo_data import (
        write_demo_data,
    )  # imports a YAML reader, which coding does not need

    with tempfile.TemporaryDirectory(prefix="autocoder-") as folder:
        demo = write_demo_data(Path(folder), records=_GENERATED, seed=_GENERATED_SEED)
        with demo.csv.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def generated_narratives() -> list[str]:
    """Returns the texts that scores are calibrated on, which are the same everywhere."""
    return [row["Final Narrative"] for row in _generated()]


def thresholds_on_table(
    released: Scorer,
    data: Path,
    *,
    columns: Sequence[str],
    join: Callable[[Sequence[Sequence[str]]], list[str]],
    label: str,
    targets: Sequence[float] = TARGETS,
    sets: bool = False,
    allow_unlisted: bool = False,
    read: ReadOptions = AS_IT_LOOKS,
) -> Thresholds:
    """Fits `thresholds_for` a released model on a table of coded records. Rows without a text or a
    code are skipped.

    The records are shuffled with a fixed seed, because the table may be sorted.

    Args:
        columns: the text columns, which `join` joins.
        label: the column of the codes.
        targets: accuracies that need a threshold.
        sets: whether to find the limits of conformal sets as well, on the same records.
        allow_unlisted: whether records with a code that the model does not know count as errors.
            Otherwise such records are refused.

    Raises:
        InputError, MechanismError: the table cannot be read, or has too few records.
    """
    from mechanisms.model.calibration import fits_temperature, thresholds_for

    places = {code: place for place, code in enumerate(released.codes)}
    table = survey(data, text_columns=[*columns, label], read=read)
    cells = (cell for (cell,) in table.text_rows([label]))
    place = f"--data: {data}, column {label!r}"
    true_codes, _ = human_codes(
        cells, released.codes, place=place, allowed=allow_unlisted, marks=read.missing
    )
    logits: list[Any] = []
    labels: list[int] = []
    done = 0
    for piece in pieces(table.text_rows(columns, table.marks()), columns=len(columns)):
        texts, codes = join(piece), true_codes[done : done + len(piece)]
        usable = [place for place, code in enumerate(codes) if code and texts[place]]
        logits.append(np.asarray(released.logits([texts[place] for place in usable])))
        labels += [places.get(codes[place], -1) for place in usable]
        done += len(piece)
        progress.report("calibrate", done, table.rows)
    order = np.random.default_rng(0).permutation(len(labels))
    shuffled, right = np.concatenate(logits)[order], np.array(labels)[order]
    fitted = thresholds_for(shuffled, right, fitted_on="coded-records", targets=targets)
    if sets:
        temperature, chosen = fitted["temperature"], fits_temperature(len(right))
        fitted["sets"] = sets_for(
            shuffled, right, released.codes, temperature=temperature, chosen=chosen
        )
    return fitted


def best_accuracy(thresholds: Thresholds) -> str:
    """Describes the best accuracy at the time of fitting, or returns an empty text if the file
    lacks it.
    """
    best = thresholds.get("reached")
    if best is None:
        return ""
    return (
        f"Of the {best['coverage']:.0%} of records with the highest scores "
        f"({best['threshold']:.3g} and above), "
        f"{best['accuracy']:.1%} were right; of all, {best['accuracy_of_all']:.1%}."
    )


def describe_target(thresholds: Thresholds, accuracy: float) -> str:
    """Describes which answers pass at a target accuracy that the file has a threshold for."""
    entry = next(one for one in thresholds["thresholds"] if one["target_accuracy"] == accuracy)
    score, right = entry["threshold"], _fraction(entry.get("accuracy"))
    assert score is not None
    target = f"target {accuracy:.0%}"
    if score > 0 and _fraction(entry.get("coverage")) != 1:
        of_those = "" if right is None else f"; {right:.1%} of those were right when it was fitted"
        return f"{target}: answers with a score of {score:.3g} or more pass{of_those}"
    # no score is below zero; the lowest score of the fit lets nearly all others pass too
    passing = "all" if score == 0 else "nearly all"
    why = "" if right is None else f", because {right:.1%} of all are right"
    return (
        f"{target}: {passing} answers pass{why} (threshold {score:.3g}); ask for a higher "
        "accuracy to review the doubtful ones"
    )


def _fraction(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None


def warnings(thresholds: Thresholds | None) -> list[str]:
    """Returns warnings on a bundle's missing thresholds for the person who releases it."""
    if thresholds is None:
        return [f"the bundle has no thresholds. {WITHOUT_TABLE}"]
    entries = thresholds["thresholds"]
    missing = [entry["target_accuracy"] for entry in entries if entry["threshold"] is None]
    if not missing:
        return []
    reached = [entry["target_accuracy"] for entry in entries if entry["threshold"] is not None]
    lacking = _targets(missing, "or")
    which = (
        f"thresholds for {_targets(reached, 'and')} accuracy, but none for {lacking}"
        if reached
        else f"no threshold for {lacking} accuracy"
    )
    seen = thresholds.get("reached")
    why = (
        "too few records to be sure"
        if seen is not None and seen["accuracy"] >= max(missing)
        else "no score achieved it with confidence"
    )
    best = best_accuracy(thresholds)
    return [
        f"the bundle has {which}: {why}, on {FITTED_ON[thresholds['fitted_on']]}. "
        f"{best}{' ' if best else ''}"
        "`autocoder code --accuracy` fails at such a target. Partners can fit thresholds with "
        f"{CALIBRATION_ADVICE}."
    ]


def _targets(targets: Sequence[float], word: str) -> str:
    *most, last = [f"{target:.0%}" for target in targets]
    return f"{', '.join(most)} {word} {last}" if most else last


CALIBRATION_ADVICE = "`autocoder adopt --data` and a few hundred records coded manually"
WITHOUT_TABLE = (
    "They come from a table of the held-out records, and this release has no such table. Partners "
    f"can fit their own thresholds with {CALIBRATION_ADVICE}."
)


def read_thresholds(path: Path) -> Thresholds:
    """Reads an untrusted file with the result of `thresholds_for`.

    Raises:
        MechanismError: the file is invalid; the message names the file and the field.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise MechanismError(
                f"{path}: its schema is not {SCHEMA}. This version cannot read it.",
                kind="thresholds-schema",
            )
        temperature, entries = float(content["temperature"]), list(content["thresholds"])
        least, most = TEMPERATURES
        # guard: test_thresholds_that_make_every_score_nan
        if not least <= temperature <= most:
            raise MechanismError(
                f"{path}: the temperature must be from {least} to {most}.",
                kind="temperature-out-of-range",
            )
        for entry in entries:
            value = entry["threshold"]
            if not 0 < entry["target_accuracy"] < 1 or (value is not None and not 0 <= value <= 1):
                raise MechanismError(
                    f"{path}: a target accuracy or a threshold is outside 0 to 1.",
                    kind="threshold-out-of-range",
                )
        content["fitted_on"] = fitted_on(content["fitted_on"])
        for key in ("release", "bundle_digest"):
            if not isinstance(content.get(key, ""), str):
                raise MechanismError(
                    f"{path}: its {key} is not a string.", kind="threshold-not-text", option=key
                )
        if "reached" in content:
            best_accuracy(content)
        for entry in content["sets"]["coverages"] if "sets" in content else ():
            Sets.of(entry)
    except OSError:
        raise MechanismError(f"{path} cannot be read", kind="unreadable-thresholds") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, MechanismError):
            raise
        raise MechanismError(
            f"{path} is not a thresholds file: a field is missing, or it is damaged.",
            kind="not-thresholds",
        ) from None
    return content
