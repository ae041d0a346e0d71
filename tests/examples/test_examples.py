"""The examples run as they stand and say what is true; the page quotes its example
word for word.
"""

import ast
import copy
import io
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.commands import profiles
from mechanisms import mechanism
from mechanisms.mechanism import Model, Records, Releasable, Run, Task
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy import noise
from mechanisms.privacy.events import Event
from tasks.branches.branch import CompareParameters

ROOT = Path(__file__).parents[2]
CONFORMING = "tests/mechanisms/test_conformance.py"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread; and an example's mechanism and event are not registered for the tests that
    follow.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    monkeypatch.setattr(mechanism, "_KINDS", dict(mechanism.kinds()))
    monkeypatch.setattr(Event, "by_tag", dict(Event.by_tag))


def _model(out: str) -> None:
    drawn = json.loads(out[out.index("{") :])
    assert float(out.split()[1]) > 0.7, "one of three classes by chance"
    assert (drawn["guarantee_kind"], drawn["delta"]) == ("asymptotic-local", None)
    assert drawn["epsilon"] == pytest.approx(2 * drawn["sensitivity"])
    assert drawn["mc_failure_prob"] == pytest.approx(1 / 101)


def _mechanism(out: str) -> None:
    claim = json.loads(out[out.index("{") :])
    assert (claim["guarantee_kind"], claim["delta"]) == ("formal", 1e-5)
    assert 1.98 <= claim["epsilon"] <= 2
    assert float(out.split()[1]) > 0.6, "one of three classes by chance"
    assumed = " ".join(claim["assumptions"])
    assert "every step" not in assumed
    assert "gradient" not in assumed, "one release has no steps"


def _classifier(out: str) -> None:
    rows = re.findall(
        r"^(\S+): accuracy ([\d.]+), epsilon (\S+), delta (\S+) \((.+)\)$", out, flags=re.MULTILINE
    )
    (plain, best, *unclaimed), *private = rows
    assert (plain, unclaimed) == ("non-private", ["None", "None", "none"])
    assert len(private) == 2
    assert all(
        4.95 <= float(epsilon) <= 5 and kind == "formal" for _, _, epsilon, _, kind in private
    )
    assert all(float(accuracy) >= float(best) - 0.02 for _, accuracy, *_ in private)


def _laplace(out: str) -> None:
    accuracy, claimed, *further = out.splitlines()
    assert float(accuracy.split()[1]) > 0.7, "one of three classes by chance"
    assert claimed.startswith("formal guarantee: epsilon = 2, delta = 0, for one record added")
    assert "one record replaced: epsilon = 4" in further[0]


CHECKS: Mapping[str, Callable[[str], None]] = {
    "own_model": _model,
    "own_mechanism": _mechanism,
    "laplace_counts": _laplace,
    "private_classifier": _classifier,
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_what_is_true(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short, and its figures are those of its claim. A new example needs a check here."""
    monkeypatch.setattr(sys, "argv", [str(example)])
    out = io.StringIO()
    with redirect_stdout(out):
        runpy.run_path(str(example), run_name="__main__")
    CHECKS[example.stem](out.getvalue())
    assert _statements(example) < 70


def _statements(example: Path) -> int:
    """Its length as a reader takes it in, whatever the width of a line."""
    tree = ast.parse(example.read_text(encoding="utf-8"))
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def _from_example() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "own_mechanism.py"), run_name="own_mechanism")


def _no_classifier() -> Any:
    raise AssertionError("this mechanism has a model of its own")


def test_the_walked_through_mechanism_keeps_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished fit is not drawn again, its model loads itself, and it cannot be released; a
    record moves the table, and noise is added to it, by what the event says.
    """
    example = _from_example()
    labels = torch.arange(60) % 3
    features = torch.randn(60, 4)
    records = Records(FeatureInputs(features), labels)
    plan = example["OutputPerturbation"]().plan(
        Task(records=60, classes=3, target_epsilon=4.0, delta=1e-4)
    )
    run = Run(classes=3, seed=0, classifier=_no_classifier, folder=tmp_path)
    first = plan.fit(records, run)
    again = plan.fit(records, run)
    assert torch.equal(first.model.means, again.model.means)
    assert first.event == plan.event
    assert isinstance(first.model, Model)
    assert not isinstance(first.model, Releasable)

    tables: list[torch.Tensor] = []
    stds: set[Fraction] = set()

    def spied(
        _: noise.SecretStream, table: torch.Tensor, *, std: Fraction, purpose: str, step: int
    ) -> torch.Tensor:
        tables.append(table * 2.0**-30)
        stds.add(std / 2**30)
        return table

    monkeypatch.setattr(noise.SecretStream, "add_rounded_normal_", spied)
    for kept in (torch.arange(60), torch.arange(1, 60)):
        fewer = Records(FeatureInputs(features[kept]), labels[kept])
        plan.fit(fewer, Run(classes=3, seed=0, classifier=_no_classifier, resampled=True))
    assert stds == {Fraction(plan.event.noise_multiplier) * Fraction(plan.event.l2_sensitivity)}
    assert float((tables[0] - tables[1]).norm()) == pytest.approx(
        plan.event.l2_sensitivity, rel=1e-5
    )


def test_one_record_moves_the_counts_with_laplace_noise_by_the_sensitivity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of records with one word, many, or none, none moves the table by more than the event says,
    and one moves it by that; the noise has the scale at which a unit costs the target.
    """
    example = runpy.run_path(str(ROOT / "examples" / "laplace_counts.py"), run_name="laplace")
    labels = torch.arange(60) % 3
    features = torch.rand(60, 50) ** 8
    features[0], features[1] = torch.eye(50)[0] * 1e30, 0
    task = Task(records=60, classes=3, target_epsilon=4.0, delta=1e-4, records_per_unit=3)
    plan = example["LaplaceCounts"]().plan(task)
    tables: list[torch.Tensor] = []
    scales: set[Fraction] = set()

    def spied(
        _: noise.SecretStream, table: torch.Tensor, *, scale: Fraction, purpose: str, step: int
    ) -> torch.Tensor:
        tables.append(table * 2.0**-30)
        scales.add(scale / 2**30)
        return table

    monkeypatch.setattr(noise.SecretStream, "add_rounded_laplace_", spied)
    for kept in (torch.arange(60), *(torch.arange(60).roll(-first)[1:] for first in range(60))):
        fewer = Records(FeatureInputs(features[kept]), labels[kept])
        plan.fit(fewer, Run(classes=3, seed=0, classifier=_no_classifier, resampled=True))
    whole, *without = tables
    moved = [float((whole - table).abs().sum()) for table in without]
    assert max(moved) <= plan.event.l1_sensitivity
    assert max(moved) == pytest.approx(plan.event.l1_sensitivity, rel=1e-6)
    assert moved[1] == pytest.approx(1, rel=1e-6), "a record without words is counted alone"
    (scale,) = scales
    assert float(3 * plan.event.l1_sensitivity / scale) == pytest.approx(4)


def test_a_package_s_mechanism_passes_the_tests_of_every_mechanism(tmp_path: Path) -> None:
    """Announced by an entry point, as the page says, the example with Laplace noise is asked what
    the program's own mechanisms are asked.
    """
    source = (ROOT / "examples" / "laplace_counts.py").read_text(encoding="utf-8")
    (tmp_path / "my_package.py").write_text(source, encoding="utf-8")
    about = tmp_path / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[autocoder.mechanisms]\nmine = my_package\n")
    asked = [CONFORMING, "-q", "-n0", "-p", "no:cacheprovider", "-k", "laplace-counts"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 11


CONFORMANCE = """
import importlib.util, sys
import pytest

example, tests = sys.argv[1:]
spec = importlib.util.spec_from_file_location("mechanisms.output_perturbation", example)
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
options = ["-q", "-n0", "-p", "no:cacheprovider", "-k", "output-perturbation"]
sys.exit(pytest.main([tests, *options]))
"""


def test_the_walked_through_mechanism_passes_the_tests_of_every_mechanism() -> None:
    """As if its file lay in `mechanisms/`, where the page puts it: a fit that was killed draws no
    noise twice, and what else is asked of all of them.
    """
    done = subprocess.run(
        [sys.executable, "-c", CONFORMANCE, "examples/own_mechanism.py", CONFORMING],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 12


def test_the_page_s_branch_completes_a_profile_that_is_copied(tmp_path: Path) -> None:
    """Appended as the page says, it is a branch of the example's mechanism beside the profile's
    own settings, and each branch that the printed command names is there.
    """
    page = (ROOT / "docs" / "how-to" / "add-a-mechanism.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"`cp (\S+) mine\.yaml`", page)
    (appended,) = re.findall(r"```yaml[^\n]*\n(.*?)```", page, flags=re.DOTALL)
    (command,) = re.findall(r"^autocoder compare (.*?)\n```", page, flags=re.DOTALL | re.MULTILINE)
    given = dict(re.findall(r"--(\S+) (\S+)", command))
    written = tmp_path / given["profile"]
    written.write_text((ROOT / source).read_text(encoding="utf-8") + appended, encoding="utf-8")
    example = _from_example()["OutputPerturbation"]
    files = {"data.source": given["data"], "data.codelist": given["codelist"]}
    assert profiles.parameters(str(written), [], files).data.population == "demo"
    settings = CompareParameters.model_validate(
        {"branches": profiles.profile_branches(str(written))}
    )
    assert type(settings.all_branches["output-perturbation"].mechanism) is example
    assert set(given["branches"].split(",")) <= settings.all_branches.keys()


def test_the_page_quotes_the_example() -> None:
    """Every block of Python on the page is consecutive statements of a file, with its comments,
    however their lines are broken; the last of them may break off.
    """
    code = "\n".join(
        (ROOT / "examples" / name).read_text(encoding="utf-8")
        for name in ("own_mechanism.py", "laplace_counts.py")
    )
    page = (ROOT / "docs" / "how-to" / "add-a-mechanism.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) >= 5
    bodies = [
        node.body
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    for block in blocks:
        quoted = textwrap.dedent(block)
        statements = ast.parse(quoted).body
        assert statements
        assert any(
            _begins(body[first:], statements) for body in bodies for first in range(len(body))
        ), block
        assert _comments(quoted) in _comments(code), block


def _begins(body: Sequence[ast.stmt], quoted: Sequence[ast.stmt]) -> bool:
    """Whether a body begins with these statements. Of a class or a function that comes last, the
    beginning is enough.
    """
    whole, last = quoted[:-1], quoted[-1]
    if len(body) < len(quoted):
        return False
    if any(ast.dump(a) != ast.dump(b) for a, b in zip(body, whole, strict=False)):
        return False
    there = body[len(whole)]
    if isinstance(last, ast.ClassDef | ast.FunctionDef) and type(there) is type(last):
        heads = [ast.dump(_without_body(each)) for each in (there, last)]
        return heads[0] == heads[1] and _begins(there.body, last.body)
    return ast.dump(there) == ast.dump(last)


def _without_body(statement: ast.stmt) -> ast.stmt:
    bare: Any = copy.copy(statement)
    bare.body = []
    return bare


def _comments(code: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    found = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return " ".join(" ".join(found).replace("#", "").split())
