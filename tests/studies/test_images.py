"""Images: the long tail, the network under the product's DP-SGD, and what is asked of schedules."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mechanisms.mechanism import Task
from studies import __main__ as commands
from studies import images, results
from studies.images import Images


def quadrants(records: int) -> Images:
    """Images 8 x 8 whose bright quadrant is the label: learned in a few steps."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2 * records) % 4
    pixels = 0.2 * torch.rand(2 * records, 8, 8, generator=generator)
    for record, label in enumerate(labels.tolist()):
        row, column = divmod(label, 2)
        pixels[record, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.8
    flat = pixels.flatten(1)
    return Images((flat[:records], labels[:records]), (flat[records:], labels[records:]), (8, 8))


def test_the_tail_and_the_halves() -> None:
    """1,371 train with 400 to 20 of a digit, 100 of each test, no image in both; three digits are
    rare.
    """
    digits = np.arange(5000) % 10
    pixels = np.zeros((5000, 784))
    pixels[:, 0] = np.arange(5000) / 5000 * 255
    found = images.long_tailed(pixels, digits)
    assert torch.bincount(found.train[1]).tolist() == [400, 288, 207, 149, 107, 77, 55, 40, 28, 20]
    assert torch.bincount(found.test[1]).tolist() == [100] * 10
    assert not set(found.train[0][:, 0].tolist()) & set(found.test[0][:, 0].tolist())
    assert found.rare == [7, 8, 9]


@pytest.mark.parametrize("model", ["linear", "convolutional"])
@pytest.mark.parametrize("schedule", ["non-private", *images.SCHEDULES])
def test_every_schedule_learns_quadrants(model: str, schedule: str) -> None:
    """At epsilon 50, claimed by the event that ran; chance is a quarter. One run in a million ends
    below.
    """
    given = quadrants(120)
    task = Task(records=120, classes=4, target_epsilon=50.0, delta=1e-5)
    plan = images.mechanism_of(model, schedule).plan(task)
    row = images.fit(given, plan, model=model, seed=2)
    assert row["accuracy"] > 0.8
    if schedule == "non-private":
        assert row["claimed"] is None
    else:
        assert 49 < row["claimed"] <= 50


def test_questions_are_answered_by_two_standard_errors() -> None:
    """A gap that single runs would not show counts where its mean over seeds exceeds two standard
    errors.
    """
    scores = {"sad": (0.70, 0.72, 0.71, 0.73), "constant": (0.69, 0.70, 0.70, 0.71)}
    rows = [
        {
            "model": "linear",
            "schedule": name,
            "epsilon": 8,
            "seed": seed,
            "balanced_accuracy": value,
        }
        for name, own in scores.items()
        for seed, value in enumerate(own)
    ]
    text = images.tables(rows)
    assert "| SAD above constant | holds (+0.015 ± 0.006) |" in text
    assert "| SAD-DPSGD | 80.68 | 81.03 | 81.98 |" in text


def lesions(records: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images 8 x 8 of three labels, most of label 1, two a lesion; brightness is the label."""
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(records) < 0.7, 1, rng.integers(0, 2, records) * 2)
    labels = np.repeat(labels[: records // 2], 2)
    pixels = np.clip(100 * labels[:, None, None] + rng.integers(0, 40, (records, 8, 8)), 0, 255)
    return pixels.astype(np.uint8), labels.astype(np.uint8), np.arange(records) // 2


def test_no_lesion_is_in_both_halves() -> None:
    """A fifth of the lesions with all of their images test; pixels are in [-1/2, 1/2]; delta is the
    paper's.
    """
    pixels, labels, ids = lesions(400)
    found = images.by_lesion(pixels, labels, ids)
    train, test = ({tuple(row.tolist()) for row in half[0]} for half in (found.train, found.test))
    for lesion in range(200):
        own = {
            tuple((torch.from_numpy(p.reshape(-1) / 255 - 0.5).float()).tolist())
            for p in pixels[ids == lesion]
        }
        assert own <= train or own <= test
    assert len(found.test[1]) == 80
    assert float(found.train[0].abs().max()) <= 0.5
    assert (found.delta, found.shape, found.majority) == (1e-3, (8, 8), 1)


def test_a_short_run_on_lesions(tmp_path: Path) -> None:
    """Groups, class sizes, the course of DP-SGD and a sweep, at the epsilon and delta asked for."""
    pixels, labels, ids = lesions(400)
    file = tmp_path / "ham.npz"
    np.savez(file, images=pixels, labels=labels, lesion_id=ids)
    given = ["--data-set", "ham10000", "--images", str(file), "--models", "linear", "--seeds", "2"]
    chosen = ["--schedules", ",".join(["constant", "sad", "auto-s", "auto-l", *images.SWEEPS])]
    out = tmp_path / "out"
    command = ["images", *given, *chosen, "--epsilons", "8", "--out", str(out)]
    assert commands.main(command) == 0
    rows = results.load(out / "images.csv")
    assert {row["delta"] for row in rows} == {1e-3}
    assert all(7.9 < row["claimed"] <= 8 for row in rows)
    sizes = results.load(out / "images-classes.csv")
    assert sum(row["train"] + row["test"] for row in sizes) == 400
    share = sizes[1]["test"] / sum(row["test"] for row in sizes)
    assert share > 0.6
    for row in rows:
        mixed = share * row["majority_accuracy"] + (1 - share) * row["minority_accuracy"]
        assert mixed == pytest.approx(row["accuracy"], abs=1e-4)
    course = results.load(out / "images-course.csv")
    claims = [row["claimed"] for row in course if row["seed"] == 0]
    assert claims == sorted(claims)
    assert claims[-1] == pytest.approx(8, abs=0.1)
    assert {file.name for file in out.glob("*.svg")} == {
        "images.svg",
        "images-groups.svg",
        "images-beta.svg",
        "images-gamma.svg",
        "images-course.svg",
    }
    text = (out / "images-tables.md").read_text()
    assert "## linear, ε 8: accuracy" in text


@pytest.mark.parametrize(
    ("arrays", "said"),
    [(None, "pass --images FILE"), ({"images": [0]}, "ham.npz has no array `labels`")],
)
def test_a_wrong_file_of_images_is_told(
    arrays: dict[str, list[int]] | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "ham.npz"
    if arrays:
        np.savez(file, images=arrays["images"], lesion_id=[0])
    given = ["images", "--data-set", "ham10000", "--images", str(file)]
    assert commands.main([*given, "--out", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().err
