"""The test vectors in the oldest and the newest libraries that a bundle is promised for, each in an
environment.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from tasks.bundle.fill import CLIENTS

pytestmark = pytest.mark.clients
ONNX = {
    "oldest": (("3.8", "3.11"), "onnxruntime==1.17.3", "scikit-learn==1.3.2", "numpy<2"),
    "newest": (("3.13", "3.12", "3.11"), "onnxruntime==1.32.0", "scikit-learn"),
}
SENTENCES = {
    "oldest": (("3.11",), "sentence-transformers==3.4.1", "transformers==4.41.2", "numpy<2"),
    "newest": (("3.11",), "sentence-transformers==6.2.0", "transformers==5.23.0"),
}


def answered(
    way: str, folder: Path, environment: Path, pythons: Sequence[str], *packages: str
) -> tuple[int, int]:
    """Returns how many test vectors a program gives in an environment of its own, and of how many.

    Args:
        pythons: the first that is here is taken.
    """
    uv = [sys.executable, "-m", "uv"]
    found = (
        one
        for one in pythons
        if not subprocess.run([*uv, "python", "find", one], capture_output=True).returncode
    )
    python = next(found, None)
    if python is None:
        pytest.skip(f"Python {' or '.join(pythons)} is not here")
    subprocess.run([*uv, "venv", "--quiet", "--python", python, str(environment)], check=True)
    own = str(environment / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", own, *packages], check=True)
    program = str(Path(__file__).with_name("client.py"))
    done = subprocess.run(
        [own, program, way, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    right, texts = json.loads(done.stdout.splitlines()[-1])
    print(f"{way}, Python {python}, {', '.join(packages)}: {right} of {texts}")  # noqa: T201
    return right, texts


@pytest.mark.parametrize("age", ["oldest", "newest"])
@pytest.mark.parametrize("way", ["onnxruntime", "scikit-learn"])
def test_onnxruntime_alone_and_in_scikit_learn(
    titled: Sealed, tmp_path: Path, age: str, way: str
) -> None:
    pythons, *packages = ONNX[age]
    alone = [one for one in packages if way == "scikit-learn" or not one.startswith("scikit-learn")]
    right, texts = answered(way, titled.folder, tmp_path / way, pythons, *alone)
    assert right == texts > 0


@pytest.mark.parametrize("age", ["oldest", "newest"])
def test_sentence_transformers(sealed: Sealed, tmp_path: Path, age: str) -> None:
    pythons, *packages = SENTENCES[age]
    right, texts = answered(
        "sentences",
        sealed.folder,
        tmp_path / age,
        pythons,
        f"torch=={version('torch').partition('+')[0]}",
        *packages,
    )
    assert right == texts > 0


def test_the_card_names_what_is_tried() -> None:
    """The range of each library begins with the oldest and ends with the newest that run here."""
    tried = {"onnxruntime": ONNX, "sentence-transformers": SENTENCES}
    for name, ages in tried.items():
        (oldest,), (newest,) = (
            [one.partition("==")[2] for one in ages[age][1:] if one.partition("==")[0] == name]
            for age in ("oldest", "newest")
        )
        first, last = CLIENTS[name].split(" to ")
        assert oldest.startswith(f"{first}.")
        assert newest.startswith(f"{last}.")
