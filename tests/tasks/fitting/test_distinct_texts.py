"""Distinct texts of a split, read from the disk: each once, the longest first, and where each
record finds its own.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import datasets
from storage.datasets import SplitWriter, load_split, split_file
from tasks.fitting.distinct_texts import DistinctTexts, text_batches


def split_of(folder: Path, texts: list[str], name: str = "train") -> None:
    table = pa.table({"text": pa.array(texts, pa.string())})
    with SplitWriter(split_file(folder, name), table.schema) as writer:
        writer.write(table)


@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=40))
def test_each_text_is_there_once_and_each_record_finds_its_own(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("split")
    split_of(folder, texts)
    distinct = DistinctTexts.of(folder, "train")
    read = distinct.texts(0, len(distinct))
    assert read == sorted(dict.fromkeys(texts), key=lambda text: -len(text))
    assert [read[place] for place in distinct.places.tolist()] == texts


def test_another_split_finds_its_texts_among_those_of_all(tmp_path: Path) -> None:
    split_of(tmp_path, ["a fall", "burns", "a cut", "burns"])
    split_of(tmp_path, ["burns", "a fall"], "test")
    distinct = DistinctTexts.of(tmp_path, "train")
    places = distinct.places_in(load_split(tmp_path, "test")).tolist()
    assert [distinct.texts(place, place + 1) for place in places] == [["burns"], ["a fall"]]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 40])
def test_a_file_has_every_record_and_is_the_same_in_whatever_pieces_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(datasets, "_BATCH", 8)
    table = pa.table({"text": pa.array([f"text {n}" for n in range(count)], pa.string())})
    files = []
    for pieces in (1, 3, 50):
        with SplitWriter(split_file(tmp_path, f"by {pieces}"), table.schema) as writer:
            for start in range(0, count, pieces):
                writer.write(table.slice(start, pieces))
        split = load_split(tmp_path, f"by {pieces}")
        assert [text for batch in text_batches(split, 5) for text in batch] == table[
            "text"
        ].to_pylist()
        files.append(split_file(tmp_path, f"by {pieces}").read_bytes())
    assert len(set(files)) == 1
