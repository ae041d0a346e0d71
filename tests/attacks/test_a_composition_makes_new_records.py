"""Would win: a fresh budget for the same records, by composing or spelling their
cells otherwise.
"""

import csv
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from releases import release_key, shared_with

from storage.ingest.cell_digests import SHORTEST, cell_digests, normal_form
from storage.ledger import Ledger, Policy
from storage.ledger.records import RecordSet
from tasks.fitting.ingest import ingest_records
from tasks.parameters import DataParameters
from tasks.releasing.ledger_records import save_record_set
from tasks.running.stage import Context, run_step

DECLARES = """
a composition or spelling makes no new records
| templates, constant and further columns, another order, ids with and without; 18 spellings:
invisible letters, small capitals, wide, bold and circled letters, accents; a table's columns in
another order, with a constant one
| look-alike letters of another script and other edits of texts without ids; a text shorter than 24
letters next to a synthetic longer one; a table with a column that says anything new
"""

TEXT = "Employee no. {} fell from a ladder at the north dock and broke a wrist"
COLUMNS = ("Case", "Narrative", "Job", "Site", "Code")
FORM = {
    "text_columns": ["Narrative"],
    "label_column": "Code",
    "date_column": None,
    "sampling": "per-record",
}
KEY = b"k" * 32


def write(
    folder: Path, *, first: int = 0, rows: int = 60, change: Any = None, named: str = "C-{}"
) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "records.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        for n in range(first, first + rows):
            row = (
                named.format(100000 + n),
                TEXT.format(n),
                "nurse",
                "North dock of the company",
                str(n % 2 + 1),
            )
            lines.writerow(row if change is None else change(row))
    return path


def marks(context: Context, path: Path, **form: Any) -> RecordSet:
    """Ingests a file as a training run does; returns the marks that a reservation registers."""
    ingest = FORM | form
    step = ingest_records(
        DataParameters.model_validate({"source": str(path), "population": "p", "ingest": ingest})
    )
    return save_record_set(context, run_step(context, step))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return tiny_jobs.workspace(tmp_path_factory.mktemp("home"))


COMPOSED: dict[str, dict[str, Any]] = {
    "a word after": {"template": "{Narrative} x"},
    "a word before": {"template": "Case {Narrative}"},
    "twice": {"template": "{Narrative} {Narrative}"},
    "another column more": {"text_columns": ["Job", "Narrative"]},
    "a constant column more": {"text_columns": ["Narrative", "Site"]},
    "another order of three": {
        "text_columns": ["Site", "Narrative", "Job"],
        "template": "{Job}{Site}: {Narrative}",
    },
    "with names": {"id_column": "Case"},
    "names, and another text": {"id_column": "Case", "text_columns": ["Job"]},
    "another half": {"seed": 9, "test_share": 0.1},
}


@pytest.mark.parametrize("form", COMPOSED.values(), ids=COMPOSED)
def test_another_composition(context: Context, tmp_path: Path, form: dict[str, Any]) -> None:
    """The marks are of each cell and of the record's id, before a template."""
    path = write(tmp_path)
    plain = marks(context, path, **({"id_column": "Case"} if "id_column" in form else {}))
    assert marks(context, path, **form).shared(plain).records


def _spelt(kind: str) -> Any:
    marked = {
        "capitals": str.upper,
        "full width": lambda t: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in t),
        "Hangul fillers": "\u3164".join,
        "half-width fillers": "\uffa0".join,
        "choseong fillers": "\u115f\u1160".join,
        "zero width": "\u200b\u200d".join,
        "soft hyphens": "\u00ad".join,
        "variation selectors": "\U000e0101".join,
        "tags": lambda t: "".join(c + chr(0xE0000 + ord(c)) for c in t),
        "turning marks": lambda t: f"\u202e{t}\u202c",
        "accents": "\u0301".join,
        "dotless": lambda t: t.replace("i", "\u0131"),
        "small capitals": lambda t: t.replace("e", "\u1d07").replace("a", "\u1d00"),
        "other blanks": lambda t: t.replace(" ", "  "),
        "no blanks": lambda t: t.replace(" ", ""),
        "punctuation": lambda t: t.replace(" ", " - "),
        "bold letters": lambda t: "".join(
            chr(0x1D41A + ord(c) - 97) if "a" <= c <= "z" else c for c in t
        ),
        "in circles": lambda t: "".join(
            chr(0x24D0 + ord(c) - 97) if "a" <= c <= "z" else c for c in t
        ),
    }
    return marked[kind]


SPELLINGS = (
    *(
        "capitals",
        "full width",
        "Hangul fillers",
        "half-width fillers",
        "choseong fillers",
        "zero width",
    ),
    *(
        "soft hyphens",
        "variation selectors",
        "tags",
        "turning marks",
        "accents",
        "dotless",
        "small capitals",
    ),
    *("other blanks", "no blanks", "punctuation", "bold letters", "in circles"),
)


@pytest.mark.parametrize("kind", SPELLINGS)
def test_another_spelling(kind: str) -> None:
    """The normal form of a cell is the same, and that of another cell is not."""
    spelt = _spelt(kind)(TEXT.format(7))
    assert spelt != TEXT.format(7)
    assert cell_digests([spelt]) == cell_digests([TEXT.format(7)]) != cell_digests([TEXT.format(8)])


def test_other_records_stay_apart(context: Context, tmp_path: Path) -> None:
    """A constant column, a short category and running numbers name no one; the control of all tests
    above.
    """
    form: dict[str, Any] = {"id_column": "Case", "text_columns": ["Narrative", "Job"]}
    one = marks(context, write(tmp_path / "one", named="{}"), **form)
    other = marks(context, write(tmp_path / "other", first=500, named="{}"), **form)
    assert not one.shared(other).records

    def renumbered(row: tuple[str, ...]) -> tuple[str, ...]:
        return (str(int(row[0]) % 500 + 1), *row[1:])

    one = marks(context, write(tmp_path / "one", named="{}", change=renumbered), **form)
    other = marks(
        context, write(tmp_path / "other", first=500, named="{}", change=renumbered), **form
    )
    assert not one.shared(other).records


def test_short_texts_are_marked_where_there_is_nothing_else() -> None:
    short, long = "cut a finger", TEXT.format(1)
    assert len(normal_form(short)) < SHORTEST < len(normal_form(long))
    assert cell_digests(["nurse", short]).find(cell_digests([short])) >= 0
    assert cell_digests(["nurse", long]) == cell_digests([long])
    assert cell_digests(["", "?!"]) == cell_digests(["?!"]) != cell_digests(["!?"])


def test_one_setting_buys_no_second_budget(context: Context, tmp_path: Path) -> None:
    """Under another population's name and a template, the ledger charges the first
    account as well.
    """
    from releases import make_plan

    path = write(tmp_path)
    cap = Policy.parse({"name": "ten", "default": {"asymptotic-local": {"epsilon": 10}}})
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", policy=cap, key=release_key())
    first = ledger.reserve(make_plan("a"), records=marks(context, path))
    composed = partial(marks, context, path, template="{Narrative} x")
    second = ledger.reserve(
        make_plan("b", population="demo2", data_fingerprint="0" * 64), records=composed()
    )
    assert shared_with(second) == [first.release_id]
