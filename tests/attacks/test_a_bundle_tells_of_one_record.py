"""Would win: a file of a bundle, outside of the drawn weights, that is another one where a single
record is missing.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_jobs
from torch import Tensor

from mechanisms.model import checkpoint
from storage.datasets import load_split
from storage.demo_data import write_demo_data
from storage.ledger.content import anticipated
from tasks.bundle import fill
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing import publish
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

DECLARES = """
a bundle tells of one record only what its ε pays for
| every byte of the bundles of two releases, made with and without one training record,
and one held-out record: with the same draw all files are the same, with their own draws all but
weights and what follows from them
| what is listed as unprotected, n among it; a sampling that couples records; the draw itself, which
ε bounds
"""

PAID = {
    *("2_Dense/model.safetensors", "golden.jsonl", "thresholds.json", "bom.cdx.json", "README.md"),
    "accuracy.json",
}
"""Weights and the noisy table, and what is computed only from them: answers, accuracy, thresholds,
which the card repeats, and digests.
"""

Built = tuple[Context, PlannedRelease, Tensor]


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path
) -> Callable[[str | None], Built]:
    """Makes a formal plan and its fit, of all records or without one of a half; under the same
    registry key.
    """
    folder = tmp_path_factory.mktemp("neighbours")
    written = write_demo_data(folder, records=300, seed=3)
    with written.csv.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def build(half: str | None) -> Built:
        name = half or "all"
        context, chosen = tiny_jobs.workspace(folder / name), rows
        if half is not None:
            texts = load_split(context_of_all.store.open(dataset_of_all), half)["text"]
            chosen = [row for row in rows if row["Final Narrative"] != texts[0]]
            assert len(chosen) == len(rows) - 1
        data = folder / f"{name}.csv"
        with data.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(chosen)
        days = {"cohorts": ["2021", "2022", "2023", "2024"], "sampling": "per-record"}
        source = {
            "source": str(data),
            "codelist": str(written.codelist),
            "population": "demo",
            "ingest": days,
        }
        model = {
            "encoder": str(tiny_bert),
            "trainable": "head",
            "pooling": "mean",
            "max_length": 32,
            "prior": "titles",
        }
        parameters = RetrainParameters.model_validate(
            {
                "data": source,
                "model": model,
                "method": {"name": "prior-descent", "target_epsilon": 3.0},
            }
        )
        planned = tiny_jobs.planned(context, parameters, tiny_jobs.fitted(context, parameters))
        planned = publish.save_plan(context, planned, parameters.release).planned
        theta = checkpoint.load(context.store.open(planned.candidate.fitted) / "theta.safetensors")[
            0
        ]["theta"]
        return context, planned, theta

    context_of_all, planned_of_all, theta_of_all = build(None)
    dataset_of_all = planned_of_all.candidate.dataset
    return lambda half: (
        (context_of_all, planned_of_all, theta_of_all) if half is None else build(half)
    )


def bundle(built: Built, theta: Tensor, folder: Path) -> dict[str, bytes]:
    context, planned, _ = built
    folder.mkdir()
    row = anticipated(planned.plan, audit=None)
    fill.fill(
        folder, context, row, planned.candidate, theta, BundleParameters(), planned.output.texts
    )
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_record_less(built: Callable[[str | None], Built], tmp_path: Path, half: str) -> None:
    """Its files are the same byte for byte; of own draws the weights differ, and what follows from
    them.
    """
    whole, less = built(None), built(half)
    assert whole[1].plan.data_fingerprint != less[1].plan.data_fingerprint
    one, other = (
        bundle(whole, whole[2], tmp_path / "one"),
        bundle(less, whole[2], tmp_path / "other"),
    )
    assert one == other
    own = bundle(less, less[2], tmp_path / "own")
    assert own.keys() == one.keys()
    different = {name for name in one if one[name] != own[name]}
    assert different <= PAID
    assert ("2_Dense/model.safetensors" in different) == (
        half == "train" or not whole[2].equal(less[2])
    )
