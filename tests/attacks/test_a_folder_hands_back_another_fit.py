"""Would win: the model of a loud fit, or of others' records, under the claim of a quiet plan that
continues in its folder; or someone who reads off the folder's identity which records it is of.
"""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import of_kind
from small_heads import head_of
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.fit_module import swag_ppm
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task, kinds
from mechanisms.model.classifier import Classifier
from mechanisms.model.identity import IDENTITY
from mechanisms.model.inputs import FeatureInputs

DECLARES = """
a folder continues its own fit alone
| a fit of another event, of other records, labels or start under the claim of a quiet plan, killed
half-way; a folder without identity; reading from an identity whose records it is of
| anyone who writes the folder and its identity manually
"""

N, WIDTH, CLASSES = 60, 4, 2
KINDS = ["dp-sgd", "prior-descent"]
"""The descents."""
QUICK: dict[str, dict[str, Any]] = {"dp-sgd": {"batch_size": 20, "epochs": 2}}


class Killed(BaseException):
    """The power goes."""


def records(seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    return Records(
        FeatureInputs(torch.rand(N, WIDTH, generator=generator)), torch.arange(N) % CLASSES
    )


def head(scale: float = 0.1) -> Classifier:
    part = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        part.weight.copy_(scale * torch.eye(CLASSES, WIDTH))
        part.bias.zero_()
    return head_of(part)


def planned(kind: str, epsilon: float) -> Plan:
    task = Task(records=N, classes=CLASSES, target_epsilon=epsilon, delta=1e-5, features=WIDTH)
    return kinds()[kind].model_validate(QUICK.get(kind, {})).plan(task)


def fit(plan: Plan, folder: Path, given: Records | None = None, **how: Any) -> Fitted:
    settings: dict[str, Any] = {
        "classes": CLASSES,
        "seed": 0,
        "classifier": head,
        "folder": folder,
    } | how
    return plan.fit(given or records(), Run(**settings))


def said(fitted: Fitted) -> Tensor:
    return fitted.model.log_probabilities(records(seed=1).inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loud_fit_under_a_quiet_claim(kind: str, tmp_path: Path) -> None:
    """Epsilon 50 in the folder, 0.5 in the plan: refused, and the quiet plan's own folder says
    something else.
    """
    loud = said(fit(planned(kind, 50.0), tmp_path / "loud"))
    with pytest.raises(MechanismError, check=of_kind("another-fit"), match=r"event or config"):
        fit(planned(kind, 0.5), tmp_path / "loud")
    assert not torch.equal(said(fit(planned(kind, 0.5), tmp_path / "quiet")), loud)
    assert torch.equal(said(fit(planned(kind, 50.0), tmp_path / "loud")), loud)


@pytest.mark.parametrize("kind", KINDS)
def test_others_records_under_the_same_plan(kind: str, tmp_path: Path) -> None:
    """As many, with one number of one of them changed, or two labels exchanged."""
    plan = planned(kind, 4.0)
    fit(plan, tmp_path)
    inputs = records().inputs
    assert isinstance(inputs, FeatureInputs)
    moved, exchanged = inputs.features.clone(), records().labels.clone()
    moved[N - 1, 0] += 0.1
    exchanged[[0, 1]] = exchanged[[1, 0]]
    for other in (
        Records(FeatureInputs(moved), records().labels),
        Records(records().inputs, exchanged),
    ):
        with pytest.raises(MechanismError, check=of_kind("another-fit"), match=r"records"):
            fit(plan, tmp_path, other)


@pytest.mark.parametrize("kind", ["dp-sgd", "prior-descent"])
def test_a_broken_fit_is_gone_on_with_by_nobody_else(kind: str, tmp_path: Path) -> None:
    """Killed with its noise half drawn and its key in the folder: other records' sums would meet
    the same noise.
    """

    def kill(done: int, total: int | None) -> None:
        raise Killed

    plan = planned(kind, 4.0)
    with pytest.raises(Killed):
        fit(plan, tmp_path, progress=kill)
    with pytest.raises(MechanismError, check=of_kind("another-fit"), match=r"records"):
        fit(plan, tmp_path, records(seed=2))
    assert fit(plan, tmp_path).event == plan.event


def test_another_untrained_model_seed(tmp_path: Path) -> None:
    """A posterior's draw lies around the head that it starts from."""
    plan = planned("prior-descent", 4.0)
    fit(plan, tmp_path)
    others: list[tuple[dict[str, Any], of_kind]] = [
        ({"classifier": lambda: head(0.2)}, of_kind("another-fit", saying="untrained model")),
        ({"seed": 1}, of_kind("another-fit", saying="seed")),
    ]
    for how, refusal in others:
        with pytest.raises(MechanismError, check=refusal):
            fit(plan, tmp_path, **how)


def test_a_folder_of_before_is_nobodys(tmp_path: Path) -> None:
    """What an older version left says neither plan nor records; nor does a folder whose identity
    was taken away.
    """
    plan = planned("prior-descent", 4.0)
    fit(plan, tmp_path)
    (tmp_path / IDENTITY).unlink()
    with pytest.raises(MechanismError, check=of_kind("unknown-fit")):
        fit(plan, tmp_path)
    (tmp_path / IDENTITY).write_text("{}")
    with pytest.raises(MechanismError, check=of_kind("unknown-fit")):
        fit(plan, tmp_path)


def test_a_kill_while_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the rename nothing is drawn yet, so the folder is still free, also for another."""

    def kill(self: Path, target: Path) -> Path:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", kill)
        with pytest.raises(Killed):
            fit(planned("dp-sgd", 50.0), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [f"{IDENTITY}.partial"]
    assert fit(planned("dp-sgd", 0.5), tmp_path).event == planned("dp-sgd", 0.5).event


def test_the_identity_says_nothing_of_the_records(tmp_path: Path) -> None:
    """Two folders of the same fit have no digest in common, so that none is recognised from a list
    of candidates made beforehand; the owner alone may read the file.
    """
    plan = planned("prior-descent", 4.0)
    for name in ("one", "two"):
        fit(plan, tmp_path / name)
    one, two = (json.loads((tmp_path / name / IDENTITY).read_text()) for name in ("one", "two"))
    assert one.keys() == two.keys() > {"key", "plan", "records", "seed", "start"}
    assert not set(one.values()) & set(two.values())
    assert stat.S_IMODE((tmp_path / "one" / IDENTITY).stat().st_mode) == 0o600


def test_a_module_of_ones_own(tmp_path: Path) -> None:
    """The one call keeps the same promise: other records, or another module at the start, are not
    handed the first.
    """
    first, second = (
        (torch.randn(40, 3), torch.arange(40) % 2),
        (torch.randn(40, 3) + 5, torch.arange(40) % 2),
    )
    module, how = nn.Linear(3, 2), dict[str, Any](draws=3, folder=tmp_path)
    swag_ppm(module, nn.functional.cross_entropy, first, **how)
    with pytest.raises(MechanismError, check=of_kind("another-fit", saying="other records")):
        swag_ppm(module, nn.functional.cross_entropy, second, **how)
    with pytest.raises(MechanismError, check=of_kind("another-fit", saying="untrained model")):
        swag_ppm(nn.Linear(3, 2), nn.functional.cross_entropy, first, **how)
