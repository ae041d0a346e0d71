"""A public coding index: what is read of it, and what is no index of a list."""

from pathlib import Path

import pytest
from csv_files import write_csv
from refusals import of_kind

from storage.codelist import Code
from storage.coding_index import INDEX, load_index, read_index
from storage.errors import InputError, StorageError
from storage.tables.options import ReadOptions

CODES = [Code("111", "Fractures"), Code("152", "Burns")]
ROWS = [
    (f"broken bone {n}" if n % 2 else f"scald {n}", "111" if n % 2 else "152") for n in range(30)
]


def test_entries_are_read_with_their_codes(tmp_path: Path) -> None:
    """Each once, without rows that lack a part, whatever else the table has."""
    more = [("", "111"), ("nothing", ""), ROWS[0]]
    rows = [(code, "x", text) for text, code in [*ROWS, *more]]
    file = write_csv(tmp_path / "index.csv", ("code", "more", "text"), rows)
    index = read_index(file)
    assert index.entries == tuple(ROWS)
    assert index.labels(CODES) == tuple(1 - n % 2 for n in range(30))
    other = tmp_path / "other.csv"
    other.write_text(file.read_text().replace(",", ";"))
    assert read_index(other, ReadOptions(separator=";")).digest == index.digest
    write_csv(file, ("code", "text"), [(code, text) for text, code in reversed(ROWS)])
    assert read_index(file).digest != index.digest, "a changed file is read again"


@pytest.mark.parametrize(
    ("header", "rows", "refusal"),
    [
        (("text", "other"), ROWS, of_kind("no-column", column="code")),
        (("text", "code"), ROWS[:5], of_kind("index-too-small", saying=5)),
        (("text", "code"), [], of_kind("only-a-header")),
    ],
    ids=["column", "few", "none"],
)
def test_what_is_no_index_is_refused(
    tmp_path: Path, header: tuple[str, str], rows: list[tuple[str, str]], refusal: of_kind
) -> None:
    with pytest.raises(InputError, check=refusal) as refused:
        read_index(write_csv(tmp_path / "index.csv", header, rows))
    assert "--examples" in str(refused.value)
    with pytest.raises(InputError, check=of_kind("no-index", saying="--examples")):
        read_index(tmp_path / "absent.csv")


def test_codes_of_another_list_are_refused_by_the_first(tmp_path: Path) -> None:
    rows = [*ROWS, ("drowned", "999")]
    index = read_index(write_csv(tmp_path / "index.csv", ("text", "code"), rows))
    with pytest.raises(
        InputError, check=of_kind("unlisted-index-codes", row=31, saying=("1 of 31", "'999'"))
    ):
        index.labels(CODES)


def test_a_data_set_gives_the_entries_that_the_fit_names(tmp_path: Path) -> None:
    index = read_index(write_csv(tmp_path / "index.csv", ("text", "code"), ROWS))
    index.save(tmp_path)
    assert load_index(tmp_path, index.digest) == index
    content = (tmp_path / INDEX).read_text()
    for changed in (content.replace("scald", "burnt", 1), "[]", "no JSON"):
        (tmp_path / INDEX).write_text(changed)
        with pytest.raises(StorageError):
            load_index(tmp_path, index.digest)
