"""Prior descent: sensitivity and noise of its steps, its budget and its rate."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from refusals import of_kind
from small_heads import KEY, claim, head_of
from torch import Tensor, nn

from mechanisms import prior_descent
from mechanisms.descent import exact_sums
from mechanisms.descent.exact_sums import GridRecords
from mechanisms.descent.noisy_descent import rate_for_noise
from mechanisms.errors import MechanismError
from mechanisms.mechanism import ClassifierModel, Fitted, Plan, Records, Run, Task
from mechanisms.model import prior
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs, save_features
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import ComposedEvent, GaussianReleaseEvent, descent_of

WIDTH, CLASSES = 8, 4
TITLES = 3 * torch.eye(CLASSES, WIDTH)
"""What is publicly known of the classes: here, the narratives of a class lie elsewhere (`TURNED`).
"""
TURNED = torch.linalg.qr(
    torch.eye(WIDTH) + 0.6 * torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3))
)[0]


def problem(n: int, *, seed: int = 0, classes: int = CLASSES) -> tuple[FeatureInputs, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    return FeatureInputs(TITLES[labels] @ TURNED + 0.7 * torch.randn(n, WIDTH, generator=g)), labels


def untrained() -> Classifier:
    part = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        part.weight.copy_(TITLES)
        part.bias.zero_()
    return head_of(part)


def fit(plan: Plan, inputs: FeatureInputs, labels: Tensor, *, folder: Path | None = None) -> Fitted:
    return plan.fit(
        Records(inputs, labels),
        Run(classes=CLASSES, seed=0, classifier=untrained, folder=folder, key=KEY),
    )


def planned(epsilon: float, n: int, **settings: object) -> Plan:
    config = PriorDescent.model_validate({"target_epsilon": epsilon, "delta": 1e-5} | settings)
    return config.plan(Task(records=n, classes=CLASSES))


def accuracy(fitted: Fitted, labels_of: int = CLASSES) -> float:
    test, truth = problem(800, seed=9, classes=labels_of)
    return float((fitted.model.log_probabilities(test).argmax(1) == truth).double().mean())


def event_of(plan: Plan) -> ComposedEvent:
    assert isinstance(plan.event, ComposedEvent)
    return plan.event


def test_the_budget_is_met() -> None:
    """The steps cost together what one Gaussian of the solved multiplier costs, and that is the
    target.
    """
    event = event_of(planned(2.0, 1000))
    (segment,) = descent_of(event).segments
    whole = GaussianReleaseEvent(
        what="one",
        noise_multiplier=segment.noise_multiplier * segment.steps**-0.5,
        l2_sensitivity=1.0,
    )
    epsilon = gaussian_cost.epsilon_of_event(event, delta=1e-5)
    assert epsilon == pytest.approx(gaussian_cost.epsilon_of_event(whole, delta=1e-5), rel=1e-3)
    assert 2 * 0.995 <= epsilon <= 2


def test_the_claim_is_formal_and_under_its_own_name() -> None:
    """A statement names `prior-descent`, not what it is composed of."""
    plan = planned(4.0, 500)
    made = claim(plan.event, delta=1e-5)
    assert (made.guarantee_kind, event_of(plan).mechanism) == ("formal", "prior-descent")
    assert made.epsilon == pytest.approx(4.0, rel=0.005)


def test_a_record_moves_a_step_by_at_most_its_clip() -> None:
    """The first step: a record with long features moves the sum by C and comes near it, so that the
    bound binds.
    """
    inputs, labels = problem(60)
    features = inputs.features.clone()
    features[0] *= 50
    rows = torch.cat([TITLES, torch.zeros(CLASSES, 1)], 1)

    def gradient(keep: Tensor) -> Tensor:
        grid = GridRecords(exact_sums.on_grid(features[keep]), labels[keep])
        total = torch.zeros((CLASSES, WIDTH + 1), dtype=torch.float64)
        exact_sums.clipped_sum(grid, rows, norm=1.0, out=total)
        return total

    whole = gradient(torch.ones(60, dtype=torch.bool))
    moves = [
        float((whole - gradient(torch.arange(60) != i)).norm()) * 2.0**-exact_sums.SUM_BITS
        for i in range(60)
    ]
    assert 0.9 < max(moves) <= 1.0


def test_the_order_of_records_moves_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one key, the same records in another order, and in blocks of another size, end in the
    same weights.
    """
    inputs, labels = problem(500)
    plan = planned(2.0, 500)
    whole = fit(plan, inputs, labels).model.log_probabilities(inputs)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    assert torch.equal(
        fit(plan, FeatureInputs(inputs.features[order]), labels[order]).model.log_probabilities(
            inputs
        ),
        whole,
    )
    monkeypatch.setattr(exact_sums, "_BLOCK", 33)
    monkeypatch.setattr(prior_descent, "_PART", 70)
    assert torch.equal(fit(plan, inputs, labels).model.log_probabilities(inputs), whole)
    monkeypatch.setattr(prior_descent, "_KEPT", 0)  # put on the grid anew in every step
    assert torch.equal(fit(plan, inputs, labels).model.log_probabilities(inputs), whole)


_IN_A_PROCESS_OF_ITS_OWN = """
import re, sys
from pathlib import Path
import torch
from mechanisms import prior_descent
from mechanisms.descent import exact_sums
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import inputs
from mechanisms.prior_descent import PriorDescent
from small_heads import KEY, head_of

folder, n = Path(sys.argv[1]), int(sys.argv[2])
plan = PriorDescent(target_epsilon=1.0, delta=1e-5, steps=2).plan(Task(records=n, classes=3))

def fit(records):
    head = head_of(torch.nn.Linear(256, 3))
    run = Run(classes=3, seed=0, classifier=lambda: head, folder=folder / "fit", key=KEY)
    plan.fit(Records(records, torch.arange(n) % 3), run)

def mib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

records = inputs.load(folder / "features.safetensors")
Path("/proc/self/clear_refs").write_text("5")
before = mib("VmRSS")
fit(records)
print(mib("VmHWM") - before)
"""


def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    """By the kernel's mark, files that are mapped included: a fit of 400 MiB of features takes less
    than half of it.
    """
    n, path = 400_000, Path(__file__).parents[1] / "support"
    save_features(
        tmp_path / "features.safetensors", (n, 256), (torch.rand(40_000, 256) for _ in range(10))
    )
    command = [sys.executable, "-c", _IN_A_PROCESS_OF_ITS_OWN, str(tmp_path), str(n)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *sys.path])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 200


def test_a_head_from_titles_is_centred_about_them() -> None:
    """With next to no noise and the same records moved by what titles share, the released head says
    the same.
    """
    inputs, labels = problem(600)
    shift = torch.full((WIDTH,), 5.0)

    def fitted(by: Tensor) -> Tensor:
        def started() -> Classifier:
            made = untrained()
            prior.start(made, (TITLES + by)[None], torch.ones(CLASSES, dtype=torch.bool))
            return made

        run = Run(classes=CLASSES, seed=0, classifier=started, key=KEY)
        plan = planned(100.0, 600)
        moved = FeatureInputs(inputs.features + by)
        return plan.fit(Records(moved, labels), run).model.log_probabilities(moved)

    torch.testing.assert_close(fitted(shift), fitted(torch.zeros(WIDTH)), atol=0.05, rtol=0.05)


def test_its_claim_covers_the_released_bits() -> None:
    """No assumption about low-order bits is left; an event of the same noise that is not exact has
    it.
    """
    event = event_of(planned(2.0, 500))
    assert not any("low-order" in line for line in claim(event, delta=1e-5).assumptions)
    rounded = [part.model_copy(update={"exact": False}) for part in event.events]
    float_event = event.model_copy(update={"events": tuple(rounded)})
    assert any("low-order" in line for line in claim(float_event, delta=1e-5).assumptions)


@pytest.mark.parametrize(("epsilon", "n"), [(1.0, 300), (5.0, 3000)])
def test_a_weight_ends_with_the_noise_that_was_asked_for(epsilon: float, n: int) -> None:
    """On features of zeros nothing is learned, and what is left in the weights is their noise: nu,
    whatever epsilon and the number of records (chi-square at level 1e-6; nu 2/3 and 3/2 of it do
    not pass).
    """
    config = PriorDescent(target_epsilon=epsilon, delta=1e-5, weight_noise=0.3)
    plan = config.plan(Task(records=n, classes=4))
    blank = nn.Linear(200, 4)
    with torch.no_grad():
        blank.weight.zero_()
        blank.bias.zero_()
    data = Records(FeatureInputs(torch.zeros(n, 200)), torch.arange(n) % 4)
    fitted = plan.fit(data, Run(classes=4, seed=0, classifier=lambda: head_of(blank), key=KEY))
    assert isinstance(fitted.model, ClassifierModel)
    weights = fitted.model.classifier.flat[: 4 * 200]
    spread = float(weights.std())
    assert 0.27 < spread < 0.33


def test_it_learns_at_epsilon_4_and_not_at_epsilon_one_hundredth() -> None:
    """A band: far above the prior's accuracy at epsilon 4; at 0.01 the noise must show, or it is
    not there.
    """
    good = fit(planned(4.0, 1500), *problem(1500))
    blind = fit(planned(0.01, 1500), *problem(1500))
    assert accuracy(good) > 0.85
    assert accuracy(blind) < accuracy(good) - 0.1


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="weight_noise"):
        PriorDescent(weight_noise=0.0)


def test_records_beyond_what_a_sum_holds_are_refused_before_they_are_read() -> None:
    """Twenty million are none too many; a clip that no part of the records fits is."""
    PriorDescent().check(Task(records=20_000_000, classes=3))
    for config, records in ((PriorDescent(), 1 << 33), (PriorDescent(l2_clip_norm=1e4), 100)):
        with pytest.raises(MechanismError, check=of_kind("too-many-records")):
            config.check(Task(records=records, classes=3))


def test_rates_follow_from_the_noise() -> None:
    """Manually, two steps with momentum 0.5: reach sqrt(1.5^2 + 1), rate nu n / (sigma C reach)."""
    config = PriorDescent(target_epsilon=2.0, delta=1e-5, steps=2, momentum=0.5, weight_noise=0.7)
    plan = config.plan(Task(records=100, classes=3))
    descent = descent_of(plan.event)
    (segment,) = descent.segments
    assert rate_for_noise(0.7, descent, divisor=100, momentum=0.5) == pytest.approx(
        0.7 * 100 / (segment.noise_multiplier * math.hypot(1.5, 1.0))
    )
