"""Columns of public values from the command line: a retrain, its release, and coding with the bundle."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from in_process import CommandRunner, invoke
from jobs import read_csv, write_csv

from mechanisms.model import export
from storage.demo_data import write_demo_data
from storage.errors import StorageError

NAME = "EventTitle"


def test_from_records_to_a_coded_file(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run counts rows by column; the plan lists the values and the release asks for them to be read; the bundle
    names its columns and codes by them."""
    monkeypatch.setenv("COLUMNS", "200")
    written = write_demo_data(tmp_path, records=400, seed=1)
    rows = read_csv(written.csv)
    values = sorted({row[NAME] for row in rows})
    (tmp_path / "events.csv").write_text("value\n" + "".join(f'"{value}"\n' for value in values[:-1]))
    retrain = ["retrain", "--profile", "demo-formal", "--data", written.csv, "--codelist", written.codelist]
    retrain += ["--home", tmp_path / "home", "--set", f"model.encoder={tiny_bert}", "--set", "model.max_length=32"]
    retrain += ["--set", f"data.ingest.value_columns={{{NAME}: {tmp_path / 'events.csv'}}}"]

    dry = json.loads(invoke(*retrain, "--dry-run", "--json")[1])
    other = sum(row[NAME] == values[-1] for row in rows)
    assert dry["columns"] == {NAME: {"listed": 400 - other, "not_on_list": other, "blank": 0}}
    assert f"{other} not on list" in invoke(*retrain, "--dry-run")[1]

    code, out, err = invoke(*retrain)
    assert code == 0, out + err
    match = re.search(r"^plan: (\S+)$", out + err, flags=re.MULTILINE)
    assert match is not None
    shown = invoke("plan", "show", match[1])[1]
    assert f"value of {NAME}: {values[0]}" in shown
    with pytest.raises(StorageError, match="texts of no published list"):
        invoke("release", match[1])
    read = re.search(r"digest ([0-9a-f]{16})", shown)
    assert read is not None
    code, out, err = invoke("release", match[1], "--accept-texts", read[1])
    assert code == 0, out + err
    (bundle,) = (tmp_path / "home" / "bundles").glob("[0-9a-f]*")
    statement = (bundle / "PRIVACY.md").read_text()
    assert re.search(
        rf"list of {len(values) - 1} values of the column .{{0,2}}{NAME}.{{0,2}}, declared public", statement
    )
    assert values[-1] not in "".join(file.read_text() for file in bundle.rglob("*.json"))

    source = write_csv(tmp_path / "new.csv", [{"Text": "Hurt.", "Event": value} for value in (*values, "", "x")])
    options = ("--bundle", bundle, "--data", source, "--column", "Text", "--column", f"{NAME}=Event")
    assert invoke("code", *options, "--out", tmp_path / "coded.csv")[0] == 0
    coded = read_csv(tmp_path / "coded.csv")
    assert [row["Event"] for row in coded] == [*values, "", "x"]
    assert (coded[-1]["code"], coded[-1]["score"]) == (coded[-3]["code"], coded[-3]["score"]), "neither is on the list"
    assert len({row["score"] for row in coded}) > 3
    answer = json.loads(invoke("code", "--bundle", bundle, "Hurt.", "--value", f"{NAME}={values[0]}", "--json")[1])
    assert answer["codes"][0]["code"] == coded[0]["code"]


def test_a_column_that_is_absent_is_named_at_once(
    valued_bundle: Path, tmp_path: Path, told: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the model is loaded, with the option that renames it; narratives need the values too."""
    source = write_csv(tmp_path / "new.csv", [{"Text": "Hurt.", "Age": "x", "Branche": "Mining"}])
    given = ("code", "--bundle", valued_bundle, "--data", source, "--column", "Text", "--out", tmp_path / "out.csv")
    with monkeypatch.context() as patched:
        patched.setattr(export, "load", lambda folder: pytest.fail("the model is loaded"))
        code, said = told(*given)
    assert code != 0
    assert "has no column 'Industry' (--column Industry=COLUMN)" in said
    assert not (tmp_path / "out.csv").exists()
    code, said = told("code", "--bundle", valued_bundle, "Hurt.", "--value", "Industry=Mining")
    assert code != 0
    assert "--value 'Age=VALUE'" in said
    code, said = told("code", "--bundle", valued_bundle, "Hurt.", "--value", "Weather=x")
    assert "no column 'Weather'. The model reads Industry, Age" in said
    code, said = told(*given, "--value", "Industry=x")
    assert code != 0
    assert "--value goes with narratives" in said
