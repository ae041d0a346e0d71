"""What a person imports by the package's name."""

import doctest
import importlib
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from refusals import of_kind
from sealed_bundle import Sealed

import autocoder
from mechanisms.errors import MechanismError
from mechanisms.mechanism import kinds
from storage.bundle.folder import UnsoundBundle
from storage.errors import InputError
from tasks.coding.coder import Coder

ROOT = Path(__file__).parents[1]


def test_every_name_is_imported_at_its_first_use() -> None:
    """Each name of `__all__` is there; `import autocoder` loads neither torch nor scikit-learn."""
    assert all(getattr(autocoder, name) is not None for name in autocoder.__all__)
    assert not hasattr(autocoder, "Undefined")
    program = "import sys, autocoder; print({'torch', 'sklearn', 'pydantic'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "name",
    [
        "Claim",
        "DpSgd",
        "Guesses",
        "NonPrivate",
        "PriorDescent",
        "PrivateClassifier",
        "SwagPpm",
        "compare",
        "one_run_bound",
        "swag_ppm",
    ],
)
def test_the_example_of_a_name_runs_as_printed(name: str) -> None:
    """Each example is in the docstring that `help(autocoder.NAME)` shows."""
    named = getattr(autocoder, name)
    names = vars(importlib.import_module(named.__module__))
    (example,) = [
        each for each in doctest.DocTestFinder(recurse=False).find(named, name, globs=dict(names))
    ]
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_page_of_python_runs_as_printed(
    sealed: Sealed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Block after block in one process; under a block that prints is what it prints."""
    shutil.copytree(sealed.folder, tmp_path / "coder")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"^( *)```(python|text[^\n]*)\n(.*?)^\1```$", page, re.MULTILINE | re.DOTALL
    )
    names: dict[str, object] = {}
    shown = ""
    for _, kind, text in blocks:
        block = textwrap.dedent(text)
        if kind == "python":
            exec(compile(block, "python.md", "exec"), names)
            shown = capsys.readouterr().out
        else:
            assert shown.startswith(block)
            shown = ""
    assert {"model", "table", "coder"} <= set(names)


def test_each_block_of_the_readme_runs_by_itself(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first needs the training installation, so the second takes no name from it."""
    shutil.copytree(sealed.folder, tmp_path / "coder")
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    training, coding = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    for block, made in ((training, "model"), (coding, "coder")):
        names: dict[str, object] = {}
        exec(compile(block, "README.md", "exec"), names)
        assert made in names
    assert "from autocoder import open_bundle\n" in coding


def test_the_page_of_python_has_every_name_of_the_package() -> None:
    """Under the name by which it is imported."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^::: autocoder\.(\w+)$", page, re.MULTILINE))
    assert named == set(autocoder.__all__) - {"__version__"}


def test_every_mechanism_has_its_name_in_the_package() -> None:
    classes = {
        mechanism.__name__
        for mechanism in kinds().values()
        if mechanism.__module__.startswith("mechanisms.")
    }
    assert classes <= set(autocoder.__all__)


def test_the_version_and_licence_are_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert autocoder.__version__ == project["version"]
    from deployments import licence_text

    assert licence_text() == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_a_bundle_codes_texts_in_two_lines(sealed: Sealed) -> None:
    """With its key it is checked first; another key's is refused before the model is loaded."""
    key = sealed.home / "signing-key.pub.pem"
    coder = autocoder.open_bundle(sealed.folder, key=key)
    assert isinstance(coder, Coder)
    answers = coder.code(["Employee fell from a ladder.", " "])
    assert answers[0].answers[0].code in coder.titles
    assert answers[1].answers == ()


def test_a_wrong_folder_or_key_is_refused(sealed: Sealed, tmp_path: Path) -> None:
    with pytest.raises(InputError, check=of_kind("not-a-bundle")):
        autocoder.open_bundle(tmp_path)
    with pytest.raises((UnsoundBundle, InputError)):
        autocoder.open_bundle(sealed.folder, key=tmp_path / "absent.pem")
    assert issubclass(autocoder.MechanismError, ValueError)
    assert autocoder.MechanismError is MechanismError
