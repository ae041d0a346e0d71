"""How far a released model's scores can be believed: a temperature, and a score above which answers are right.

What leaves must be fitted on public or generated records, or be charged to the ledger: figures fitted on private
records are a second release. So a bundle's own `thresholds.json` is fitted on generated narratives, and says so.
**Generated narratives are not an agency's**: what holds there need not hold on real ones. An agency that has coded some
records by hand fits its own file (`autocoder calibrate`), which stays in its house.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.export import Released
from storage.codelist import normalise_code
from storage.demo_data import write_demo_data
from storage.tables.reading import pieces, survey
from tasks.running import progress

THRESHOLDS = "thresholds.json"
SCHEMA = 1
TARGETS = (0.80, 0.90, 0.95)
"""Accuracies among automatically coded records for which a threshold is looked for."""
CONFIDENCE = 0.95
"""That the accuracy above a threshold reaches its target, on records like those it was fitted on."""

_GRID = 100
_FEWEST = 50
_GENERATED, _GENERATED_SEED = 800, 20260102
_LOG_TEMPERATURE = (math.log(0.05), math.log(20.0))


def thresholds_for(
    logits: Tensor,
    labels: Tensor,
    *,
    fitted_on: str,
    targets: Sequence[float] = TARGETS,
    confidence: float = CONFIDENCE,
) -> dict[str, Any]:
    """Temperature and thresholds, as the content of `thresholds.json`.

    The temperature T minimises -sum log softmax(logits / T)[label] (Guo et al. 2017, section 4.2). It is fitted on one
    half of the records (every other one) and the thresholds on the other, since a threshold found on the records that
    shaped its scores would promise too much.

    A threshold is the lowest score above which the accuracy reaches the target with the stated confidence. Candidates
    are tried from the strictest down, each by an exact binomial test, up to the first that fails: testing in a fixed
    sequence keeps the confidence over all of them (Angelopoulos et al. 2021, "Learn then test", section 2.3).

    Args:
        logits: float [n, codes], in any order of records that owes nothing to the answers.
        labels: int64 [n], index of the right code; -1 where the model has no such code, which no answer gets right.
        fitted_on: what the records are; told to everybody who reads a threshold.

    Returns:
        `{schema, temperature, thresholds, fitted_on, records, confidence}`. Each threshold holds `target_accuracy`,
        `threshold` (a score in [0, 1]; null where no score reaches the target), `coverage` (share of records at or
        above it) and `accuracy` among those; null without a threshold.

    Raises:
        MechanismError: shapes that do not belong together, values that are no numbers, too few records.
    """
    logits, labels = logits.detach().double().cpu(), labels.cpu()
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise MechanismError(f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} do not belong together")
    if not bool(logits.isfinite().all()):
        raise MechanismError("calibration: a score is no number; is the model whole?")
    if len(labels) < 2 * _FEWEST:
        raise MechanismError(f"calibration needs {2 * _FEWEST} records or more; there are {len(labels)}")
    if not all(0 < target < 1 for target in targets):
        raise MechanismError("a target accuracy lies between 0 and 1")
    temperature = fit_temperature(logits[::2], labels[::2])
    best = (logits[1::2] / temperature).softmax(-1).max(-1)
    score, right = best.values.numpy(), (best.indices == labels[1::2]).numpy()
    return {
        "schema": SCHEMA,
        "temperature": round(temperature, 4),
        "thresholds": [_threshold(score, right, target, 1 - confidence) for target in sorted(targets)],
        "fitted_on": fitted_on,
        "records": len(labels),
        "confidence": confidence,
    }


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T > 0 under which the right codes are most likely, in [0.05, 20]. Labels of -1 are left out.

    Raises:
        MechanismError: no record has a code of the model's.
    """
    from scipy.optimize import minimize_scalar

    coded = labels >= 0
    if not bool(coded.any()):
        raise MechanismError("calibration: none of the records has a code that the model knows")
    logits, labels = logits[coded], labels[coded]

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / math.exp(log_temperature), labels))

    minimum: Any = minimize_scalar(loss, bounds=_LOG_TEMPERATURE, method="bounded", options={"xatol": 1e-5})
    return math.exp(float(minimum.x))


def _threshold(
    score: NDArray[np.float64], right: NDArray[np.bool_], target: float, failure: float
) -> dict[str, float | None]:
    """The lowest score that passes, `failure` being the probability that one passes wrongly."""
    from scipy.stats import binom

    score = np.floor(score * 1e6) / 1e6  # as answers are written, so that a score read back is on the same side
    order = np.argsort(-score, kind="stable")
    score, hits = score[order], np.cumsum(right[order])
    # Below this many records not even a faultless run would pass, and the sequence would end before it began.
    first = max(_FEWEST, math.ceil(math.log(failure) / math.log(target)))
    lowest: dict[str, float | None] = {"threshold": None, "coverage": None, "accuracy": None}
    for kept in np.unique(np.linspace(first, len(score), _GRID).astype(int)) if first <= len(score) else ():
        kept = int(np.searchsorted(-score, -score[kept - 1], side="right"))  # all records of the same score
        # How likely so many right answers are, were the accuracy only just below the target.
        if binom.sf(hits[kept - 1] - 1, kept, target) > failure:
            break
        lowest = {
            "threshold": round(float(score[kept - 1]), 6),
            "coverage": round(kept / len(score), 4),
            "accuracy": round(float(hits[kept - 1] / kept), 4),
        }
    return {"target_accuracy": target} | lowest


def thresholds_on_generated(released: Released) -> dict[str, Any] | None:
    """`thresholds_for` a released model on generated narratives; None where it shares too few codes with them.

    The narratives are made anew from a fixed seed that is not the demo's own, and owe nothing to any record.
    """
    at = {code: place for place, code in enumerate(released.codes)}
    with tempfile.TemporaryDirectory(prefix="autocoder-") as folder:
        demo = write_demo_data(Path(folder), records=_GENERATED, seed=_GENERATED_SEED)
        with demo.csv.open(newline="", encoding="utf-8") as file:
            rows = [(row["Final Narrative"], at.get(row["Nature"], -1)) for row in csv.DictReader(file)]
    labels = torch.tensor([label for _, label in rows])
    if float((labels >= 0).float().mean()) < 0.5:
        return None
    logits = released.logits([text for text, _ in rows])
    return thresholds_for(
        logits, labels, fitted_on=f"{_GENERATED} generated narratives (storage.demo_data); no agency's records"
    )


def thresholds_on_table(
    released: Released,
    data: Path,
    *,
    columns: Sequence[str],
    join: Callable[[Sequence[Sequence[str]]], list[str]],
    label: str,
    name: str,
) -> dict[str, Any]:
    """`thresholds_for` a released model on a table of coded records; rows without text or code are left out.

    The records are taken in a fixed order that is not the table's, which may be sorted.

    Args:
        columns: the text columns, which `join` makes one text of.
        label: the column of the codes.

    Raises:
        InputError, MechanismError: the table cannot be read, or has too few records.
    """
    at = {code: place for place, code in enumerate(released.codes)}
    table = survey(data, text_columns=[*columns, label])
    logits: list[Tensor] = []
    labels: list[int] = []
    done = 0
    for piece in pieces(table.text_rows([*columns, label]), columns=len(columns) + 1):
        texts = join([row[:-1] for row in piece])
        codes = [normalise_code(row[-1], at) for row in piece]
        kept = [place for place, code in enumerate(codes) if code and texts[place]]
        logits.append(released.logits([texts[place] for place in kept]))
        labels += [at.get(codes[place], -1) for place in kept]
        done += len(piece)
        progress.report("calibrate", done, table.rows)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return thresholds_for(torch.cat(logits)[order], torch.tensor(labels)[order], fitted_on=name)


def read_thresholds(path: Path) -> dict[str, Any]:
    """Read what `thresholds_for` returned, from a file that may come from elsewhere.

    Raises:
        MechanismError: names the file and the field at fault.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise MechanismError(f"{path}: its schema is not {SCHEMA}; this version cannot read it")
        temperature, entries = float(content["temperature"]), list(content["thresholds"])
        if not (0 < temperature < math.inf):
            raise MechanismError(f"{path}: the temperature must be above 0")
        for entry in entries:
            value = entry["threshold"]
            if not 0 < entry["target_accuracy"] < 1 or (value is not None and not 0 <= value <= 1):
                raise MechanismError(f"{path}: a target accuracy or a threshold does not lie between 0 and 1")
        str(content["fitted_on"])
    except OSError:
        raise MechanismError(f"{path} cannot be read") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, MechanismError):
            raise
        raise MechanismError(f"{path} is no thresholds file: it lacks a field, or is damaged") from None
    return content
