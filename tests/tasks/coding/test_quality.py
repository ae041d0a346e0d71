"""Double coding: the sample is drawn as told, blind, and agreement is that of the whole table."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csv_files import rows_of, write_csv
from refusals import of_kind
from sklearn.metrics import cohen_kappa_score

from storage.errors import InputError
from tasks.coding.quality import Agreement, draw, read_double_coded
from tasks.coding.quality import agreement as agreement_of

COLUMNS = ["Text"]
SAMPLE = ["qa_row", "qa_weight", "human_code"]


def agreement(coded: Path, sample: Path, **options: Any) -> Agreement:
    return agreement_of(read_double_coded(coded, sample, **options))


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    """1,000 rows: 1311 is a tenth of them, 111 and 132 the rest."""
    rng = random.Random(0)
    codes = ["1311" if n % 10 == 0 else rng.choice(["111", "132"]) for n in range(1000)]
    return write_csv(
        tmp_path / "coded.csv",
        ["Text", "code"],
        [[f"text {n}", code] for n, code in enumerate(codes)],
    )


def coded_again(sample: Path, *, wrong: dict[str, float], codes: list[str], seed: int = 0) -> None:
    """Fill in the human's codes: the table's, but another with a probability that depends on the
    code.
    """
    rng, rows = random.Random(seed), rows_of(sample)
    for row in rows:
        code = codes[int(row["qa_row"]) - 1]
        row["human_code"] = "10" if rng.random() < wrong[code] else code
    write_csv(sample, list(rows[0]), [list(row.values()) for row in rows])


def test_the_sample_is_drawn_as_told_and_blind(coded: Path, tmp_path: Path) -> None:
    """All sensitive rows, a twentieth of the others rounded up, in the table's order, without the
    model's codes.
    """
    done = draw(coded, tmp_path / "s.csv", columns=COLUMNS, sensitive=["1311"], seed=None)
    sample = rows_of(tmp_path / "s.csv")
    assert (done.rows, done.sampled, done.sensitive) == (1000, 145, 100)
    assert list(sample[0]) == ["qa_row", "Text", "qa_weight", "human_code"]
    assert [row["Text"] for row in sample] == [f"text {int(row['qa_row']) - 1}" for row in sample]
    assert {row["human_code"] for row in sample} == {""}
    assert Counter(row["qa_weight"] for row in sample) == {"1.0": 100, "20.0": 45}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["coded.csv", "s.csv"]
    with pytest.raises(InputError, check=of_kind("sample-exists")):
        draw(coded, tmp_path / "s.csv", columns=COLUMNS, seed=None)


def test_samples_differ_unless_a_seed_repeats_them(coded: Path, tmp_path: Path) -> None:
    """And every row has the same chance: 200 samples of 50 give each row 10 takes, five standard
    deviations are 15.
    """
    taken: Counter[str] = Counter()
    for seed in range(200):
        out = tmp_path / f"{seed}.csv"
        draw(coded, out, columns=COLUMNS, seed=seed)
        taken.update(row["qa_row"] for row in rows_of(out))
    assert sum(taken.values()) == 200 * 50
    assert max(taken.values()) < 30
    assert len(taken) > 990
    draw(coded, tmp_path / "again.csv", columns=COLUMNS, seed=0)
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "0.csv").read_bytes()


def test_agreement_is_the_whole_table_s_though_sensitive_codes_are_all_sampled(
    coded: Path, tmp_path: Path
) -> None:
    """Sensitive rows are a tenth of the table and half of the sample, and the human disagrees with
    all of them. The table's agreement is then 90 % times 0.9 = 81 %; the sample's own, unweighted,
    is under 60 %.
    """
    codes = [row["code"] for row in rows_of(coded)]
    sample = tmp_path / "s.csv"
    draw(coded, sample, columns=COLUMNS, share=0.12, sensitive=["1311"], seed=1)
    coded_again(sample, wrong={"1311": 1.0, "111": 0.1, "132": 0.1}, codes=codes)
    found = agreement(coded, sample)
    assert found.rows == 208
    # 108 rows of the others at 0.9: standard error 0.03 of 0.9 of the table, four of them are 0.11
    assert found.share == pytest.approx(0.81, abs=0.11)
    assert found.share_interval[0] < found.share < found.share_interval[1]
    rows = rows_of(sample)
    plain = np.mean([row["human_code"] == codes[int(row["qa_row"]) - 1] for row in rows])
    assert plain < 0.6, "without weights it would be another figure"
    human, model = (
        [row["human_code"] for row in rows],
        [codes[int(row["qa_row"]) - 1] for row in rows],
    )
    weights = [float(row["qa_weight"]) for row in rows]
    assert found.kappa == pytest.approx(
        cohen_kappa_score(human, model, sample_weight=weights), abs=1e-4
    )
    ten = next(code for code in found.codes if code.code == "10")
    assert (ten.model, ten.both, ten.f1) == (0, 0, 0.0)


def test_codes_as_table_programs_return_them(coded: Path, tmp_path: Path) -> None:
    """111.0 is 111; rows without a code are counted and left out; one code
    throughout has no kappa.
    """
    codes = [row["code"] for row in rows_of(coded)]
    at = [n + 1 for n, code in enumerate(codes) if code == "111"][:4]
    rows = [
        [str(at[0]), "1", "111.0"],
        [f"{at[1]}.0", "1", " 111 "],
        [str(at[2]), "1", ""],
        [str(at[3]), "1", "111"],
    ]
    found = agreement(coded, write_csv(tmp_path / "s.csv", SAMPLE, rows))
    assert (found.rows, found.missing, found.share, found.kappa, found.kappa_interval) == (
        3,
        1,
        1.0,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("model", "human", "agree"),
    [
        ("S72", "S72.0", False),
        ("250", "250.0", False),
        ("111", "111.0", True),
        ("'-12", "-12", True),
        ("'-12", "'-12", True),
    ],
)
def test_two_codes_are_one_where_a_table_program_made_two(
    tmp_path: Path, model: str, human: str, agree: bool
) -> None:
    """A code that the table holds is another one; an apostrophe before what looks like a formula is
    no part of it.
    """
    coded = write_csv(tmp_path / "coded.csv", ["code"], [[model], ["250.0"]])
    sample = write_csv(tmp_path / "s.csv", SAMPLE, [["1", "1", human]])
    assert agreement(coded, sample).share == float(agree)


@pytest.mark.parametrize(
    ("rows", "refusal"),
    [
        ([["1", "1", ""]], of_kind("no-codes-in-sample", column="human_code")),
        ([["1", "1", "a"], ["1", "1", "b"]], of_kind("changed-sample", row=2)),
        ([["1001", "1", "a"]], of_kind("changed-sample", row=1)),
        ([["x", "1", "a"]], of_kind("changed-sample", row=1)),
        ([["1", "nan", "a"]], of_kind("changed-sample", row=1)),
    ],
)
def test_a_sample_not_as_drawn_is_refused(
    coded: Path, tmp_path: Path, rows: list[list[str]], refusal: of_kind
) -> None:
    """Naming the row."""
    with pytest.raises(InputError, check=refusal):
        agreement(coded, write_csv(tmp_path / "s.csv", SAMPLE, rows))


def returned(folder: Path, codes: list[str]) -> tuple[Path, Path]:
    """A coded table of three codes, and its whole sample with these codes by people."""
    model = [("0111", "132", "1522")[at % 3] for at in range(len(codes))]
    coded = write_csv(folder / "coded.csv", ["code"], [[code] for code in model])
    return coded, write_csv(
        folder / "s.csv", SAMPLE, [[str(at + 1), "1", code] for at, code in enumerate(codes)]
    )


def test_marks_by_people_are_no_codes(tmp_path: Path) -> None:
    """`NA` in a third of the rows drops no agreement, and is counted as missing."""
    coded, sample = returned(tmp_path, ["0111", "132", "NA"] * 10)
    found = agreement(coded, sample)
    assert (found.share, found.missing, found.rows) == (1.0, 10, 20)
    assert found.people == (
        "30 rows coded by people: 20 among the model's codes of the file, 0 not, 10 without a code"
    )


@pytest.mark.parametrize("spelling", ["{} - Amputations", "{}: a title", "{}.0"])
def test_codes_with_titles_or_lost_zeros_are_read(tmp_path: Path, spelling: str) -> None:
    """Where every code has a listed one: as Excel shows them, or returns them."""
    coded, sample = returned(
        tmp_path, [spelling.format(code) for code in ("111", "132", "1522")] * 10
    )
    found = agreement(coded, sample)
    assert (found.share, found.missing) == (1.0, 0)
    assert "(10 in another spelling)" in found.people or "(30 in another spelling)" in found.people


def test_codes_that_no_list_has_are_refused(tmp_path: Path) -> None:
    """With a list all of them; without one, where no code at all is the model's. Allowed, they
    count as codes.
    """
    coded, sample = returned(tmp_path, ["0111", "132", "PLANTED"] * 10)
    assert agreement(coded, sample).share == pytest.approx(2 / 3, abs=1e-3)
    with pytest.raises(
        InputError, check=of_kind("unlisted-codes"), match=r"\b10\b.*\b30\b"
    ) as refused:
        agreement(coded, sample, listed=["0111", "132", "1522"])
    assert "PLANTED" not in str(refused.value)
    assert (
        agreement(coded, sample, listed=["0111", "132", "1522"], allow_unlisted=True).missing == 0
    )
    coded, sample = returned(tmp_path, ["narratives", "in the", "wrong column"] * 10)
    with pytest.raises(
        InputError, check=of_kind("unlisted-codes", saying=("30 of 30", "the model's codes"))
    ):
        agreement(coded, sample)


def filled(coded: Path, sample: Path) -> list[dict[str, str]]:
    """A sample with the codes of people, who agree with the model."""
    codes = [row["code"] for row in rows_of(coded)]
    draw(coded, sample, columns=COLUMNS, share=0.05, seed=1)
    coded_again(sample, wrong=dict.fromkeys(codes, 0.0), codes=codes)
    return rows_of(sample)


def saved(sample: Path, rows: list[dict[str, str]]) -> Path:
    return write_csv(sample, list(rows[0]), [list(row.values()) for row in rows])


@pytest.mark.parametrize("column", ["Text", "qa_row", "human_code"])
def test_a_column_that_was_sorted_alone(coded: Path, tmp_path: Path, column: str) -> None:
    """Refused: people's codes, texts or row numbers beside those of other rows."""
    rows = filled(coded, tmp_path / "s.csv")
    assert agreement(coded, tmp_path / "s.csv").share == 1.0
    for falls in (False, True):
        alone = sorted((row[column] for row in rows), reverse=falls)
        sheet = [row | {column: value} for row, value in zip(rows, alone, strict=True)]
        kind = "sorted-codes" if column == "human_code" else "sorted-alone"
        with pytest.raises(InputError, check=of_kind(kind)):
            agreement(coded, saved(tmp_path / "s.csv", sheet))


def test_a_sheet_sorted_whole_and_a_sample_of_another_table(coded: Path, tmp_path: Path) -> None:
    rows = filled(coded, tmp_path / "s.csv")
    by_code = sorted(rows, key=lambda row: (row["human_code"], row["Text"]))
    assert agreement(coded, saved(tmp_path / "s.csv", by_code)).share == 1.0
    other = [[f"another {n}", row["code"]] for n, row in enumerate(rows_of(coded))]
    write_csv(tmp_path / "other.csv", ["Text", "code"], other)
    with pytest.raises(
        InputError, check=of_kind("sorted-alone", saying=f"{len(rows)} of {len(rows)}")
    ):
        agreement(tmp_path / "other.csv", tmp_path / "s.csv")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: f"'{text}",
        str.upper,
        lambda text: f"  {text}\u00a0 ",
        lambda text: text.replace(" ", "\r\n"),
        lambda text: text.replace("é", "?"),
    ],
    ids=["apostrophe", "case", "blanks", "line ends", "accents lost"],
)
def test_texts_that_a_table_program_wrote_otherwise(
    tmp_path: Path, change: Callable[[str], str]
) -> None:
    """They are the same texts: the sample is taken."""
    coded = write_csv(
        tmp_path / "coded.csv",
        ["Text", "code"],
        [[f"café number {n}", ("111", "132")[n % 2]] for n in range(400)],
    )
    rows = filled(coded, tmp_path / "s.csv")
    sheet = [row | {"Text": change(row["Text"])} for row in rows]
    assert agreement(coded, saved(tmp_path / "s.csv", sheet)).share == 1.0
