"""A release per field: plans from one encoding, and one table coded by several bundles that share
an encoder.
"""

import csv
import json
import re
from pathlib import Path

import pytest
from in_process import CommandRunner, invoke
from jobs import read_csv, write_csv

from storage.demo_data import write_demo_data
from tasks.bundle import public_features

WITHOUT = 4
"""Every so many records lacks a code of its event."""


def with_events(folder: Path) -> tuple[Path, Path, Path]:
    written = write_demo_data(folder, records=400, seed=1)
    rows = read_csv(written.csv)
    codes = {
        title: str(10 + at) for at, title in enumerate(sorted({row["EventTitle"] for row in rows}))
    }
    for at, row in enumerate(rows):
        row["Event"] = "" if at % WITHOUT == 0 else codes[row["EventTitle"]]
    listed = write_csv(
        folder / "events.csv", [{"code": code, "title": title} for title, code in codes.items()]
    )
    return write_csv(folder / "coded.csv", rows), written.codelist, listed


def test_records_to_a_table_of_two_fields(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two plans from one encoding, two releases in the ledger; each bundle's columns are those that
    it codes alone, and the texts are encoded once.
    """
    monkeypatch.setenv("COLUMNS", "200")
    records, natures, events = with_events(tmp_path)
    home = tmp_path / "home"
    options = ["--profile", "demo-formal", "--data", records, "--home", home]
    options += ["--set", f"model.encoder={tiny_bert}", "--set", "model.max_length=32"]
    options += ["--population", "demo", "--classification", "OIICS"]
    labels = ["--label", "Nature", "--codelist", natures, "--label", "Event", "--codelist", events]
    code, out, err = invoke("retrain", *options, *labels)
    assert code == 0, out + err
    plans = re.findall(r"^plan: (\S+)$", out + err, flags=re.MULTILINE)
    assert len(plans) == 2
    stages = home / "private" / "stages"
    assert len(list((stages / "encoding").iterdir())) == 1
    assert len(list((stages / "features").iterdir())) == 2
    assert len(list((stages / "ingest").iterdir())) == 2

    bundles = []
    for plan in plans:
        shown = invoke("plan", plan)[1]
        read = re.search(r"digest ([0-9a-f]{16})", shown)
        code, out, err = invoke("release", plan, *(["--accept-texts", read[1]] if read else []))
        assert code == 0, out + err
        bundles.append(
            next(one for one in (home / "bundles").glob("[0-9a-f]*") if one not in bundles)
        )

    encoded: list[int] = []
    real = public_features.compute
    monkeypatch.setattr(
        "tasks.bundle.public_features.compute",
        lambda released, texts: encoded.append(len(texts)) or real(released, texts),
    )
    source = write_csv(
        tmp_path / "new.csv", [{"Text": text} for text in ("He fell from a ladder.", "", "Burned.")]
    )
    given = ("--data", source, "--text", "Text", "--home", home)
    both = [
        part
        for name, one in zip(("nature", "event"), bundles, strict=True)
        for part in ("--bundle", f"{name}={one}")
    ]
    code, out, err = invoke(
        "code", *given, *both, "--threshold", "0.5", "--out", tmp_path / "both.csv"
    )
    assert code == 0, out + err
    assert encoded == [2], "the two texts once, for both bundles"
    coded = read_csv(tmp_path / "both.csv")
    for name, one in zip(("nature", "event"), bundles, strict=True):
        assert (
            invoke(
                "code",
                *given,
                "--bundle",
                one,
                "--threshold",
                "0.5",
                "--out",
                tmp_path / f"{name}.csv",
            )[0]
            == 0
        )
        for row, alone in zip(coded, read_csv(tmp_path / f"{name}.csv"), strict=True):
            for column in ("code", "title", "needs_review", "bundle_digest"):
                assert row[f"{name}_{column}"] == alone[column]
            assert float(row[f"{name}_score"] or 0) == pytest.approx(
                float(alone["score"] or 0), abs=1e-4
            )
    assert {row["event_code"] for row in coded} <= {"", *(row["code"] for row in read_csv(events))}

    answer = json.loads(invoke("code", *both, "--home", home, "Burned.", "--json")[1])
    assert [answer[name]["codes"][0]["code"] for name in ("nature", "event")] == [
        coded[2]["nature_code"],
        coded[2]["event_code"],
    ]
    summary = (tmp_path / "both.csv.summary.html").read_text()
    assert "<h2>nature</h2>" in summary
    assert "<h2>event</h2>" in summary
    drawn = invoke(
        "sample",
        tmp_path / "both.csv",
        "--prefix",
        "event_",
        "--share",
        "1",
        "--out",
        tmp_path / "s.csv",
    )
    assert drawn[0] == 0, drawn
    assert "event_human_code" in (tmp_path / "s.csv").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--label", "Nature", "--label", "Nature"], "a column is listed twice"),
        (
            ["--label", "Nature", "--label", "Event", "--codelist", "{list}"],
            "1 lists for 2 --label",
        ),
        (["--label", "Nature", "--label", "Event", "--deploy", "own"], "Use --label once"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    tmp_path: Path, told: CommandRunner, given: list[str], said: str
) -> None:
    """Before anything is read; compare, which has one column of codes, refuses two."""
    written = write_demo_data(tmp_path, records=40, seed=1)
    options = ["--profile", "demo-formal", "--data", written.csv, "--home", tmp_path / "home"]
    chosen = [str(written.codelist) if one == "{list}" else one for one in given]
    status, error = told("retrain", *options, *chosen)
    assert (status, said in error) == (2, True), error
    status, error = told("compare", *options, "--label", "Nature", "--label", "Event")
    assert (status, "one column of codes" in error) == (2, True), error


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["{bundle}", "part={bundle}"], "several bundles need names"),
        (["part={bundle}", "part={bundle}"], "several bundles need names"),
        (["Part of Body={bundle}"], "is not a valid column prefix"),
    ],
)
def test_bundles_without_a_name_of_their_own_are_refused(
    tiny_bundle: Path, tmp_path: Path, told: CommandRunner, given: list[str], said: str
) -> None:
    source = write_csv(tmp_path / "new.csv", [{"Text": "Employee fell."}])
    bundles = [part for one in given for part in ("--bundle", one.format(bundle=tiny_bundle))]
    status, error = told(
        "code", *bundles, "--data", source, "--text", "Text", "--out", tmp_path / "out.csv"
    )
    assert (status, said in error) == (2, True), error
    assert not (tmp_path / "out.csv").exists()


def test_columns_that_a_table_has_are_all_named_at_once(
    tiny_bundle: Path, tmp_path: Path, told: CommandRunner
) -> None:
    source = tmp_path / "new.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["title", "Text", "code"], ["x", "Employee fell.", "7"]])
    options = ("code", "--data", source, "--text", "Text", "--out", tmp_path / "out.csv")
    status, error = told(*options, "--bundle", tiny_bundle)
    assert (status, "title, code" in error) == (2, True), error
    assert told(*options, "--bundle", f"oiics={tiny_bundle}")[0] == 0
    (row,) = read_csv(tmp_path / "out.csv")
    assert (row["code"], row["title"]) == ("7", "x")
    assert row["oiics_code"]
