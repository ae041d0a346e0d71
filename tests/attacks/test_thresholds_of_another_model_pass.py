"""Would win: unseen answers let through by scores of another model, whose 0.8 is none of this
one's.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind

from storage.bundle.folder import bundle_digest
from storage.errors import InputError
from tasks.coding.coder import open_bundle

DECLARES = """
your own thresholds belong to the model that is used
| a file fitted on another bundle, one that names its bundle in no words, numbers that let
everything through
| a file of an earlier version, which does not say; one that was edited
"""

FITTED: dict[str, Any] = {
    "schema": 1,
    "temperature": 2.0,
    "fitted_on": "coded-records",
    "records": 400,
    "confidence": 0.95,
    "thresholds": [{"target_accuracy": 0.8, "threshold": 0.1}],
}


@pytest.fixture
def another(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Next year's bundle: another in one letter."""
    made = shutil.copytree(tiny_bundle, tmp_path / "next-year")
    with (made / "LICENSE").open("a") as file:
        file.write(".")
    return made


def _written(place: Path, **said: Any) -> Path:
    place.write_text(json.dumps(FITTED | said))
    return place


def test_thresholds_of_this_years_with_next_years(
    tiny_bundle: Path, another: Path, tmp_path: Path
) -> None:
    """Refused with both names; with their own they are taken, and so is a file of before, which
    does not say.
    """
    own = _written(
        tmp_path / "own.json", release="3f2a9c41d07b65e8", bundle_digest=bundle_digest(tiny_bundle)
    )
    assert open_bundle(tiny_bundle, thresholds=own).threshold_for(0.8) == 0.1
    with pytest.raises(
        InputError,
        check=of_kind("thresholds-of-another-bundle", saying=("3f2a9c41d07b65e8", "tiny")),
    ):
        open_bundle(another, thresholds=own)
    assert (
        open_bundle(another, thresholds=_written(tmp_path / "before.json")).threshold_for(0.8)
        == 0.1
    )


@pytest.mark.parametrize("said", [None, 5, True, [], {}], ids=repr)
def test_a_file_that_names_its_bundle_in_no_words(
    tiny_bundle: Path, tmp_path: Path, said: Any
) -> None:
    """It does not pass for one of before."""
    with pytest.raises(InputError, check=of_kind("threshold-not-text", saying="bundle_digest")):
        open_bundle(tiny_bundle, thresholds=_written(tmp_path / "odd.json", bundle_digest=said))


@pytest.mark.parametrize(
    "said",
    [
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": -1},
        {"thresholds": [{"target_accuracy": 0.8, "threshold": float("nan")}]},
        {"thresholds": [{"target_accuracy": 0.8, "threshold": -0.1}]},
        {"thresholds": [{"target_accuracy": float("nan"), "threshold": 0.5}]},
        {"thresholds": [{"target_accuracy": 0.8, "threshold": "0.1"}]},
    ],
    ids=str,
)
def test_a_number_that_lets_everything_through(
    tiny_bundle: Path, tmp_path: Path, said: dict[str, Any]
) -> None:
    """Or nothing: refused as the file is read."""
    with pytest.raises(
        InputError,
        check=of_kind(
            "temperature-out-of-range", "threshold-out-of-range", "not-thresholds", saying="odd"
        ),
    ):
        open_bundle(tiny_bundle, thresholds=_written(tmp_path / "odd.json", **said))
