"""Demo data: the shape, the tail and the difficulty that it promises."""

import csv
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from storage.codelist import read_codelist
from storage.datasets import load_split
from storage.demo_data import DemoData, write_demo_data
from storage.ingest import IngestConfig, ingest


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoData:
    return write_demo_data(tmp_path_factory.mktemp("demo"), seed=7)


@pytest.fixture(scope="module")
def rows(demo: DemoData) -> list[dict[str, str]]:
    with demo.csv.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def gini(sizes: np.ndarray) -> float:
    return float(np.abs(sizes[:, None] - sizes).mean() / (2 * sizes.mean()))


def test_layout(rows: list[dict[str, str]], demo: DemoData) -> None:
    """At least 1,500 narratives over 40 codes, OSHA's columns, three years of dates, every code on
    the list.
    """
    assert len(rows) == 1800
    titles = {code.code: code.title for code in read_codelist(demo.codelist)}
    assert len(titles) >= 40
    assert {row["Nature"]: row["NatureTitle"] for row in rows} == titles
    assert {datetime.strptime(row["EventDate"], "%m/%d/%Y").year for row in rows} == {
        2021,
        2022,
        2023,
    }
    assert len({row["Final Narrative"] for row in rows}) > 1750
    assert any("\n" in row["Final Narrative"] for row in rows)
    assert not any("{" in row["Final Narrative"] for row in rows)


def test_codes_and_titles_are_the_published_ones(demo: DemoData, shared_data: Path) -> None:
    """Every code and title stands so in OIICS 2.01."""
    published = set(read_codelist(shared_data / "oiics201_nature.csv"))
    assert set(read_codelist(demo.codelist)) <= published


def test_units_have_several_records(rows: list[dict[str, str]]) -> None:
    """Establishments differ in size, so that a cap on the records of a unit has something to do."""
    sizes = np.unique([row["Establishment"] for row in rows], return_counts=True)[1]
    assert len(sizes) > 300
    assert sizes.max() >= 10
    assert (sizes == 1).any()


@pytest.mark.parametrize("seed", [1, 7])
def test_tail_and_difficulty(tmp_path: Path, seed: int) -> None:
    """Sampled as in the paper: Gini of the training records 0.6 as in its figure 2, and word counts
    reach 0.65 to 0.8. The band of weighted F1 is the promised 0.6 to 0.9 with a margin; it has a
    ceiling, since a set that everything solves shows nothing.
    """
    demo = write_demo_data(tmp_path, seed=seed)
    result = ingest(demo.csv, tmp_path, IngestConfig(), demo.codelist)
    assert result.train + result.test >= 1500
    assert result.codes_observed >= 40
    train, test = load_split(tmp_path, "train"), load_split(tmp_path, "test")
    assert gini(np.unique(train["label"], return_counts=True)[1]) == pytest.approx(0.6, abs=0.03)
    words = CountVectorizer()
    model = LogisticRegression(max_iter=1000).fit(
        words.fit_transform(list(train["text"])), list(train["label"])
    )
    found = model.predict(words.transform(list(test["text"])))
    assert 0.65 < f1_score(list(test["label"]), found, average="weighted") < 0.8


def test_a_seed_gives_one_file(tmp_path: Path, demo: DemoData) -> None:
    """The same bytes again; another seed gives other narratives over the same codes."""
    again, other = (write_demo_data(tmp_path / str(seed), seed=seed) for seed in (7, 8))
    assert again.csv.read_bytes() == demo.csv.read_bytes()
    assert other.csv.read_bytes() != demo.csv.read_bytes()
    assert other.codelist.read_bytes() == demo.codelist.read_bytes()


@pytest.mark.parametrize("records", [10, 200, 5000])
def test_any_size(tmp_path: Path, records: int) -> None:
    written = write_demo_data(tmp_path, records=records, seed=0)
    with written.csv.open(encoding="utf-8", newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == records
