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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.calibration import SCHEMA, TARGETS, thresholds_for
from mechanisms.model.export import Released
from storage.codelist import normalise_code
from storage.demo_data import write_demo_data
from storage.tables.reading import pieces, survey
from tasks.running import progress

THRESHOLDS = "thresholds.json"
_GENERATED, _GENERATED_SEED = 800, 20260102
_INJURIES = "OIICS"
"""Classification of what the generated narratives tell of; on texts of another task they would say nothing."""


def are_generated_for(classification: str) -> bool:
    """Whether the generated narratives are of a classification's kind; of one without a name its codes decide."""
    return not classification or classification.upper().startswith(_INJURIES)


def thresholds_on_generated(
    released: Released, *, classification: str, field: str = "", titles: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """`thresholds_for` a released model on generated narratives; None where they are of another kind than its codes.

    The narratives are made anew from a fixed seed that is not the demo's own, and owe nothing to any record.

    Args:
        field: of several, which one the model codes; its name goes into the file, so that no other takes it.
        titles: of its codes. Two lists may share a number, and the generated code counts where its title is the same.
    """
    if not are_generated_for(classification):
        return None
    at = {code: place for place, code in enumerate(released.codes)}

    def same(row: Mapping[str, str]) -> bool:
        return titles is None or titles.get(row["Nature"]) == row["NatureTitle"]

    with tempfile.TemporaryDirectory(prefix="autocoder-") as folder:
        demo = write_demo_data(Path(folder), records=_GENERATED, seed=_GENERATED_SEED)
        with demo.csv.open(newline="", encoding="utf-8") as file:
            rows = [
                (row["Final Narrative"], at.get(row["Nature"], -1) if same(row) else -1) for row in csv.DictReader(file)
            ]
    labels = torch.tensor([label for _, label in rows])
    if float((labels >= 0).float().mean()) < 0.5:
        return None
    logits = released.logits([text for text, _ in rows])
    return _of_field(field) | thresholds_for(
        logits, labels, fitted_on=f"{_GENERATED} generated narratives (storage.demo_data); no agency's records"
    )


def _of_field(field: str) -> dict[str, Any]:
    return {"field": field} if field else {}


def thresholds_on_table(
    released: Released,
    data: Path,
    *,
    columns: Sequence[str],
    join: Callable[[Sequence[Sequence[str]]], list[str]],
    label: str,
    name: str,
    field: str = "",
    targets: Sequence[float] = TARGETS,
) -> dict[str, Any]:
    """`thresholds_for` a released model on a table of coded records; rows without text or code are left out.

    The records are taken in a fixed order that is not the table's, which may be sorted.

    Args:
        columns: the text columns, which `join` makes one text of.
        label: the column of the codes.
        field: of several, the one that the model codes.
        targets: accuracies for which a threshold is looked for.

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
    fitted = thresholds_for(torch.cat(logits)[order], torch.tensor(labels)[order], fitted_on=name, targets=targets)
    return _of_field(field) | fitted


def reached(known: Mapping[str, Any]) -> str:
    """The best that was seen when thresholds were fitted, in words; empty for a file that does not say."""
    best = known.get("reached")
    if best is None:
        return ""
    return (
        f"the best was {best['accuracy']:.1%} right, of the surest {best['coverage']:.0%} of the records (score "
        f"{best['threshold']:g} and above), and {best['accuracy_of_all']:.1%} of all"
    )


def warnings(known: Mapping[str, Any] | None) -> list[str]:
    """What whoever releases a bundle should know of its thresholds; nothing where all are there."""
    if known is None:
        return [f"the bundle has no thresholds: {NONE_FOR_OTHERS}"]
    missing = [f"{entry['target_accuracy']:.0%}" for entry in known["thresholds"] if entry["threshold"] is None]
    if not missing:
        return []
    seen = f"; {reached(known)}" if reached(known) else ""
    return [
        f"no score reached {' or '.join(missing)} right on {known['fitted_on']}{seen}: `autocoder code --accuracy` "
        f"fails there for a partner who has no thresholds of its own ({OWN})"
    ]


OWN = "`autocoder calibrate`, with a few hundred records coded by hand"
NONE_FOR_OTHERS = (
    "they would be fitted on generated narratives of injuries, which say nothing of other codes; partners fit their "
    f"own ({OWN})"
)


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
        for key in ("field", "release", "bundle_digest"):
            if not isinstance(content.get(key, ""), str):
                raise MechanismError(f"{path}: its {key} is no name")
        if "reached" in content:
            reached(content)
    except OSError:
        raise MechanismError(f"{path} cannot be read") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, MechanismError):
            raise
        raise MechanismError(f"{path} is no thresholds file: it lacks a field, or is damaged") from None
    return content
