"""`python -m studies`: help, refusals, and the short run of a study."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from studies import __main__ as commands
from studies import rare_codes, results

ROOT = Path(__file__).parents[2]
STUDIES = [
    "imbalance",
    "sets",
    "regularisation",
    "subsamples",
    "oversampling",
    "mixture",
    "boundaries",
    "images",
    "schedules",
    "swag-ppm",
    "rare-codes",
    "rmia",
]


@pytest.mark.parametrize("study", STUDIES)
def test_help_has_an_example(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([study, "--help"]) == 0
    assert f"python -m studies {study} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["imbalance", "--data", "nowhere"], "nowhere/ecoli.csv does not exist"),
        (["sets", "--data", "nowhere"], "nowhere/ecoli.csv does not exist"),
        (["subsamples", "--data", "nowhere"], "nowhere/mammography.csv does not exist"),
        (["regularisation", "--data", "nowhere"], "nowhere/ecoli.csv does not exist"),
        (
            ["imbalance", "--data", "x", "--systems", "gam"],
            "--systems: `gam` is unknown. Choose from plain-logistic",
        ),
        (
            ["oversampling", "--data", "nowhere", "--sets", "ecoli"],
            "does not exist. --data is a folder",
        ),
        (["images", "--models", "ham"], "--models: `ham` is unknown"),
        (["rare-codes"], "pass --records and --codelist"),
        (["rmia"], "pass --records and --codelist"),
        (["swag-ppm"], "pass --records and --codelist"),
        (
            ["rare-codes", "--records", "nowhere.csv", "--codelist", "nowhere.csv"],
            "nowhere.csv does not exist",
        ),
    ],
)
def test_mistakes_are_told(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main([*given, "--out", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Whole numbers, fractions, words, and what is missing."""
    rows = [{"a": 1, "b": 0.25, "c": "x, y", "d": None}, {"a": 2, "b": 1e-9, "c": "z", "d": 3}]
    results.save(tmp_path / "r.csv", rows)
    assert results.load(tmp_path / "r.csv") == rows


def test_f1_by_bins_of_training_records() -> None:
    """Two codes of the held-out records: one with 60 training records, always right; one
    with two, never.
    """
    train = np.array(["a"] * 60 + ["b"] * 2)
    figures = rare_codes.by_bin(np.array(["a", "a", "b"]), np.array(["a", "a", "a"]), train)
    assert figures["f1_50_up"] == pytest.approx(0.8)
    assert figures["f1_1_4"] == 0
    assert figures["macro_f1"] == pytest.approx(0.4)
    assert np.isnan(figures["f1_5_9"])


@pytest.mark.long
def test_a_whole_study_of_mixtures(tmp_path: Path) -> None:
    assert commands.main(["mixture", "--draws", "2", "--out", str(tmp_path)]) == 0
    files = {file.name for file in tmp_path.iterdir()}
    assert files == {"mixture.csv", "mixture.svg", "mixture-formulas.csv", "mixture-thresholds.csv"}


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["imblearn", "mlxtend", "rtdl_revisiting_models", "xgboost"]))
from studies.__main__ import main
assert main(["--help"]) == 0
sys.exit(main(["images", "--models", "short", "--out", "results"]))
"""


def test_without_the_extra_every_study_is_listed_and_the_installation_named() -> None:
    """One that needs no package of the extra is there; the others say how to keep the checkout's
    installation editable.
    """
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    listed = re.findall(r"^  ([a-z-]+)  ", done.stdout, flags=re.MULTILINE)
    assert set(STUDIES) <= set(listed)
    assert done.stderr == "mlxtend is missing. Run `make setup`, or `pip install -e '.[studies]'`\n"


def test_modules_of_the_extra_are_those_of_its_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {
        Requirement(line).name.replace("-", "_")
        for line in project["optional-dependencies"]["studies"]
    }
    owners = metadata.packages_distributions()
    found = {name.replace("-", "_") for module in commands.EXTRA for name in owners[module]}
    assert found == asked
