"""Would win: an agency, or whoever has its key, whose signed bundle holds a partner's machine busy
or makes its scores meaningless, and which `verify` calls sound.
"""

import json
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from mechanisms.errors import MechanismError
from storage.bundle.check import check
from storage.bundle.folder import GOLDEN, THRESHOLDS, UnsoundBundle
from tasks.bundle.thresholds import read_thresholds

DECLARES = """
a sound bundle is cheap to check and has usable scores
| temperatures of 1e-300, 1e300 and 1e999, on the bundle and in a file of one's own; 28,800 test vectors
| a model that is slow or wrong
"""


@pytest.mark.parametrize("temperature", ["1e-300", "1e300", "1e999", "0", "-1"])
def test_thresholds_that_make_every_score_nan(
    sealed: Sealed, tmp_path: Path, temperature: str
) -> None:
    """`verify` refuses the bundle, and `adopt` and `code` refuse the file."""
    folder = sealed.copy(tmp_path, seal=False)
    content = json.dumps(
        {"schema": 1, "thresholds": [], "fitted_on": "generated", "temperature": 7}
    )
    (folder / THRESHOLDS).write_text(content.replace("7", temperature))
    with pytest.raises(UnsoundBundle) as refused:
        check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert refused.value.file == THRESHOLDS
    with pytest.raises(MechanismError):
        read_thresholds(folder / THRESHOLDS)
    (folder / THRESHOLDS).write_text(content)
    check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert read_thresholds(folder / THRESHOLDS)["temperature"] == 7


def test_more_test_vectors_than_a_release_writes(sealed: Sealed, tmp_path: Path) -> None:
    """They are counted before any of them is parsed or computed."""
    folder = sealed.copy(tmp_path, seal=False)
    vectors = (folder / GOLDEN).read_text()
    assert vectors.count("\n") == 48
    (folder / GOLDEN).write_text(vectors * 600)
    with pytest.raises(UnsoundBundle) as refused:
        check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert refused.value.file == GOLDEN
