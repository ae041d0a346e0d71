"""Adopts a bundle: verifies it, unpacks it, fits the partner's own thresholds and
writes a report.
"""

import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mechanisms.model.calibration import fits_temperature
from mechanisms.model.config import TARGETS
from mechanisms.model.conformal import Sets
from mechanisms.model.scorer import GRAPH
from mechanisms.thresholds_file import FITTED_ON, Thresholds, fitted_on
from storage.bundle.adoption import KEY, REPORT, AdoptedBundle, Adoption
from storage.bundle.archive import open_folder
from storage.bundle.check import VerifiedBundle, check
from storage.bundle.folder import STATEMENT, THRESHOLDS
from storage.bundle.stated import accuracy_lines, difference, stated_accuracy
from storage.bundle.trust import Trust
from storage.durable import write_atomically
from storage.egress.allow_list import FILES, list_files
from storage.errors import Contradiction, Missing, NotInstalled
from storage.narrative_look import NarrativeLook, look_at
from storage.tables.narratives import Narratives
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import survey
from tasks.bundle import golden
from tasks.bundle.thresholds import best_accuracy, thresholds_on_table
from tasks.coding.coder import open_bundle
from tasks.pages.render import render
from tasks.running import installation, progress


@dataclass(frozen=True)
class OwnRecords:
    """The records that a partner coded manually, and how their tables are read."""

    data: Path | None = None
    label: str | None = None
    """Column with the codes."""
    columns: tuple[str, ...] = ()
    template: str | None = None
    accuracy: float | None = None
    sets: bool = False
    allow_unlisted: bool = False
    read: ReadOptions = AS_IT_LOOKS

    @property
    def narratives(self) -> Narratives:
        return Narratives(self.columns or ("Final Narrative",), self.template)


@dataclass(frozen=True)
class AdoptionReport:
    adopted: AdoptedBundle
    sound: VerifiedBundle
    answers: int | None
    """Number of test vectors that were checked; None if the bundle has no graph and
    torch is missing.
    """
    thresholds: Thresholds | None
    """The partner's own thresholds."""
    notes: tuple[str, ...] = ()
    """Sentences on partner narratives that the model cannot read in full."""

    @property
    def threshold_lines(self) -> list[str]:
        """Describes the partner's thresholds, or the bundle's."""
        fitted = self.thresholds or self.sound.contents.get(THRESHOLDS)
        return [] if fitted is None else [*_lines(fitted)]

    @property
    def accuracy_lines(self) -> list[str]:
        """Describes the model's accuracy, as the agency reports it and on the
        partner's own records.
        """
        told = stated_accuracy(self.sound.contents)
        lines = accuracy_lines(told)
        if self.thresholds is None:
            return lines
        right = float(self.thresholds["reached"]["accuracy_of_all"])
        number = int(self.thresholds["records"])
        used = number - int(fits_temperature(number).sum())
        comparison = difference(told, right, used, set_aside=number - used)
        return [*lines, *filter(None, [comparison])]

    @property
    def measured_on(self) -> str:
        """Describes the records that the bundle's thresholds were fitted on."""
        fitted = self.sound.contents.get(THRESHOLDS)
        return "" if fitted is None else f"on {FITTED_ON[fitted_on(fitted['fitted_on'])]}"

    @property
    def coverage(self) -> list[tuple[int, float]]:
        fitted = () if self.thresholds is None else self.thresholds["thresholds"]
        return [
            (round(100 * entry["target_accuracy"]), 100 * entry["coverage"])
            for entry in fitted
            if entry["coverage"]
        ]

    @property
    def unchecked(self) -> list[str]:
        roots = (
            "revocation: --roots names the file roots.json that the agency sends when it "
            "revokes a release"
        )
        accuracy = (
            "accuracy on your narratives: --data names a file of records that you coded manually"
        )
        return [
            *([roots] if self.adopted.roots is None else []),
            *(
                [f"test vectors: this bundle has no {GRAPH}, and torch is not installed"]
                if self.answers is None
                else []
            ),
            *([] if self.thresholds else [accuracy]),
        ]

    @property
    def next_commands(self) -> list[str]:
        name, adoption = shlex.quote(str(self.adopted.folder)), self.adopted.adoption
        column = "" if adoption.columns or adoption.template else " --text COLUMN"
        return [
            f"autocoder code --bundle {name} --data new.csv{column} --out coded.csv",
            f"autocoder serve --bundle {name} --api-key-file key.txt",
            f"autocoder verify {name}",
        ]

    def page(self) -> str:
        return render(
            "adoption.html",
            notice=(
                "Only for you: the thresholds depend on your records. Nothing here is sent to "
                "anyone."
            )
            if self.thresholds
            else "Nothing here is sent to anyone.",
            report=self,
            next="\n".join(self.next_commands),
            statement=self.sound.contents[STATEMENT],
        )


def adopt(
    source: Path, out: Path, key: Path, roots: Path | None, own: OwnRecords
) -> AdoptionReport:
    """Adopts a bundle into a new folder, completely or not at all."""
    if own.data is not None:
        if find_spec("scipy") is None:
            raise NotInstalled(installation.refusal(["scipy"]), kind="scipy-missing")
        if own.label is None:
            raise Missing(
                "--label: missing. Specify the column of --data with the codes "
                "that people assigned.",
                kind="no-label",
            )
        survey(
            own.data,
            text_columns=[*own.narratives.columns, own.label],
            option="--data",
            read=own.read,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    # a temporary folder of its own, so that two adoptions into one place do not collide
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.adopting-", dir=out.parent))
    try:
        filled = _fill(source, staging, key, roots, own)
        report = AdoptionReport(
            AdoptedBundle(out, filled.adopted.adoption),
            filled.sound,
            filled.answers,
            filled.thresholds,
            filled.notes,
        )
        write_atomically(staging / REPORT, report.page().encode())
        try:
            staging.rename(out)
        except OSError:
            if not out.exists():
                raise
            raise Contradiction(
                f"--out: {out} was created by another adoption in the meantime. "
                "Choose another folder.",
                kind="adopted-meanwhile",
            ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return report


def _copy(bundle: Path, placed: Path) -> None:
    """Copies the files of a bundle, with the permissions of new files."""
    for name, file in list_files(bundle, allowed=frozenset(FILES)).items():
        (placed / name).parent.mkdir(parents=True, exist_ok=True)
        # guard: test_a_umask_that_lets_everyone_write
        shutil.copyfile(file, placed / name)


def _fill(
    source: Path, folder: Path, key: Path, roots: Path | None, own: OwnRecords
) -> AdoptionReport:
    progress.report("check", 0, 1)
    trust = Trust(key, roots)
    with open_folder(source) as bundle:
        placed = folder / check(bundle, trust).release_id
        _copy(bundle, placed)
    sound = check(placed, trust)  # the copy is checked, because the source may have changed
    answers = golden.check_answers(placed, sound.contents)
    progress.report("check", 1, 1)
    shutil.copyfile(key, folder / KEY)
    fitted: Thresholds | None = None
    notes: list[str] = []
    if own.data is not None and own.label is not None:
        coder, records = open_bundle(placed), own.narratives
        fitted = thresholds_on_table(
            coder.model,
            own.data,
            columns=records.columns,
            join=records.texts,
            label=own.label,
            targets=sorted({*TARGETS} if own.accuracy is None else {*TARGETS, own.accuracy}),
            sets=own.sets,
            allow_unlisted=own.allow_unlisted,
            read=own.read,
        )
        fitted["release"], fitted["bundle_digest"] = coder.release, coder.digest
        notes = coder.reads.notes(_look(own))
        _require_use(fitted, notes)
        write_atomically(
            folder / THRESHOLDS, json.dumps(fitted, indent=2).encode() + b"\n", source=own.data
        )
    adopted = AdoptedBundle(
        folder,
        Adoption(
            release_id=sound.release_id,
            columns=own.columns,
            template=own.template,
            roots=None if roots is None else str(roots.absolute()),
            has_thresholds=fitted is not None,
            accuracy=own.accuracy if _reached(own.accuracy, fitted) else None,
        ),
    )
    adopted.save()
    return AdoptionReport(adopted, sound, answers, fitted, tuple(notes))


def _look(own: OwnRecords) -> NarrativeLook:
    columns = own.narratives.columns
    table = survey(own.data or Path(), text_columns=columns, option="--data", read=own.read)
    return look_at(table, columns)


_LEAST_RIGHT = 0.1
"""Share of correct codes on the partner's records below which the model does not fit them."""


def _require_use(fitted: Thresholds, notes: Sequence[str]) -> None:
    """Refuses a model that gives nearly all of the partner's records a different
    code than people.
    """
    right = float(fitted["reached"]["accuracy_of_all"])
    if right < _LEAST_RIGHT:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise Contradiction(
            f"--data: the model assigns {right:.1%} of these records the code "
            f"that people assigned{why}, less than {_LEAST_RIGHT:.0%}. Either it "
            "was trained for other records, or the columns are wrong. Check "
            "--text and --label. Without --data the bundle is adopted as it is",
            kind="model-mostly-wrong",
        )


def _reached(accuracy: float | None, fitted: Thresholds | None) -> bool:
    entries = [] if fitted is None else fitted["thresholds"]
    return any(
        entry["target_accuracy"] == accuracy and entry["threshold"] is not None for entry in entries
    )


def _lines(fitted: Thresholds) -> Iterator[str]:
    for entry in fitted["thresholds"]:
        start = f"{100 * entry['target_accuracy']:g}% right: "
        if entry["threshold"] is None:
            yield start + "no score achieves it with confidence"
        else:
            yield (
                start
                + (
                    f"score {entry['threshold']:.3f} and above, {entry['coverage']:.0%} of the "
                    "records"
                )
            )
    yield best_accuracy(fitted)
    sets = [Sets.of(entry) for entry in fitted["sets"]["coverages"]] if "sets" in fitted else []
    yield from (limit.statement for limit in sets if limit.confidence is None)
    told = [limit for limit in sets if limit.confidence is not None]
    if told:
        shares = ", ".join(f"{limit.coverage:g}" for limit in told)
        yield f"`autocoder code --coverage` of {shares}: {told[-1].statement}"
