"""`autocoder revise` on coded files and on bundles: both ways to the next version give the same codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import command, invoke
from jobs import read_csv, write_csv
from sealed_bundle import Sealed
from tiny_models import CODES

from storage.errors import InputError


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every code goes on with a digit more; the first is split, the last ended."""
    codes = list(CODES)
    rows = [{"old": code, "new": f"{code}0", "share": 1.0} for code in codes[1:-1]]
    rows += [{"old": codes[0], "new": f"{codes[0]}{at}", "share": share} for at, share in ((1, 0.2), (2, 0.8))]
    return write_csv(tmp_path_factory.mktemp("tables") / "table.csv", rows)


def test_a_coded_file_gets_what_coding_with_the_crosswalk_gives(
    tiny_bundle: Path, table: Path, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """The bundle's crosswalk and the table itself lead to the same codes; all rows are counted."""
    source = write_csv(tmp_path / "new.csv", [{"Text": text} for text in [*narratives(60), ""]])
    given = ("--bundle", tiny_bundle, "--data", source, "--column", "Text", "--quiet")
    command("code", *given, "--out", tmp_path / "coded.csv")
    revise = ("--table", table, "--version", "3.00", "--json")
    done = json.loads(command("revise", tmp_path / "coded.csv", *revise, "--out", tmp_path / "revised.csv"))
    assert done["one"] + done["split"] + done["missing"] + done["blank"] == done["total"] == 61
    assert done["blank"] == 1
    bundle = json.loads(command("revise", tiny_bundle, *revise, "--out", tmp_path / "crosswalk.csv"))
    assert (bundle["total"], bundle["split"], bundle["missing"]) == (len(CODES), 1, 1)
    command("code", *given, "--out", tmp_path / "walked.csv", "--crosswalk", tmp_path / "crosswalk.csv")
    revised, walked = read_csv(tmp_path / "revised.csv"), read_csv(tmp_path / "walked.csv")
    for name in ("Text", "code", "crosswalk_code", "crosswalk_version", "bundle_digest"):
        assert [row[name] for row in revised] == [row[name] for row in walked]
    split = [row["crosswalk_code"] for row in revised if row["code"] == next(iter(CODES))]
    assert set(split) <= {"; ".join(f"{next(iter(CODES))}{at}" for at in (2, 1))}, "the larger share comes first"


def test_a_field_of_several_has_columns_of_its_own(
    joint: Sealed, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Another field stays as it was, and can follow from the output."""
    source = write_csv(tmp_path / "new.csv", [{"Text": text} for text in narratives(10)])
    coded, first = tmp_path / "coded.csv", tmp_path / "first.csv"
    given = ("--bundle", joint.folder, "--data", source, "--column", "Text", "--out", coded)
    command("code", *given, "--quiet", "--allow-revoked", "--home", tmp_path)
    codes = {row["nature"] for row in read_csv(coded)}
    table = write_csv(tmp_path / "table.csv", [{"old": code, "new": f"{code}x"} for code in sorted(codes)])
    options = ("--table", table, "--version", "3", "--field", "nature")
    said = command("revise", coded, *options, "--out", first)
    assert said.startswith("10 rows: 10 with one new code, 0 split, 0 without a new code, 0 blank. 0 are for review.")
    assert all(row["nature_crosswalk_code"] == f"{row['nature']}x" for row in read_csv(first))
    with pytest.raises(InputError, match="The table has nature, event"):
        invoke("revise", coded, "--table", table, "--version", "3", "--out", tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--out", "table.csv"), "exists. Name another file"),
        (("--out", "out.xlsx"), "out.xlsx has another ending"),
        (("--out", "out.csv", "--column", "Nature"), "no column 'Nature'"),
        (("--out", "out.csv", "--codelist", "list.csv"), "new codes of --table are not in it"),
    ],
)
def test_what_cannot_be_revised_is_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    """Before a file is written."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "coded.csv", [{"code": next(iter(CODES))}])
    (tmp_path / "table.csv").write_bytes(table.read_bytes())
    (tmp_path / "list.csv").write_text("code,title\n1,One\n2,Two\n")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=said):
        invoke("revise", "coded.csv", "--table", "table.csv", "--version", "3", *options)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_sets_of_new_codes_are_the_same_both_ways(
    tiny_bundle: Path, table: Path, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Coding with the crosswalk and revising afterwards give the same sets; one with the ended code is empty."""
    codes, texts = list(CODES), narratives(200)
    records = [{"Text": text, "Code": codes[n % len(codes)]} for n, text in enumerate(texts)]
    source, fitted = write_csv(tmp_path / "own.csv", records), tmp_path / "sets.json"
    given = ("--bundle", tiny_bundle, "--data", source, "--column", "Text")
    command("calibrate", *given, "--label-column", "Code", "--out", fitted, "--sets")
    sets = ("--thresholds", fitted, "--coverage", "0.8", "--quiet")
    command("code", *given, *sets, "--out", tmp_path / "coded.csv")
    revise = ("--table", table, "--version", "3.00")
    command("revise", tmp_path / "coded.csv", *revise, "--out", tmp_path / "revised.csv")
    command("revise", tiny_bundle, *revise, "--out", tmp_path / "crosswalk.csv")
    walk = ("--crosswalk", tmp_path / "crosswalk.csv")
    command("code", *given, *sets, *walk, "--out", tmp_path / "walked.csv")
    revised, walked = read_csv(tmp_path / "revised.csv"), read_csv(tmp_path / "walked.csv")
    for name in ("crosswalk_set", "crosswalk_set_size"):
        assert [row[name] for row in revised] == [row[name] for row in walked]
    emptied = [not row["crosswalk_set"] for row in revised]
    assert emptied == [codes[-1] in row["set"].split("; ") for row in revised]
    assert any(row["set_size"] > "1" for row in revised)
