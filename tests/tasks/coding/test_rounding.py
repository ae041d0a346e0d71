"""Coding in eight bits: taken where the test vectors hold, left where they do not, and never mixed
in one job.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import of_kind

from mechanisms.model import export, onnx_graph
from mechanisms.model.scorer import INT8, Graph, margin_errors
from storage.bundle.folder import CODELIST, GOLDEN
from storage.codelist import read_codelist
from storage.errors import InputError
from tasks.bundle import golden
from tasks.coding import rounding
from tasks.coding.coder import open_bundle
from tasks.coding.job import CodingJob


@pytest.fixture(scope="module")
def eight_bits(tiny_bundle: Path) -> bytes:
    return onnx_graph.graph(export.load(tiny_bundle), tiny_bundle, int8=True)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path, eight_bits: bytes) -> Path:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, folder)
    text = golden.answers_text(open_bundle(folder).released, read_codelist(folder / CODELIST))
    (folder / GOLDEN).write_text(text, encoding="utf-8")
    (folder / INT8).write_bytes(eight_bits)
    return folder


def texts_of(folder: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / GOLDEN).read_text().splitlines()]


def test_auto_takes_eight_bits_where_golden_answers_hold(bundle: Path) -> None:
    """Scores then differ only from float32's by rounding, and the codes of near
    ties are float32's.
    """
    quick, exact = open_bundle(bundle, precision="auto"), open_bundle(bundle)
    assert (quick.model.precision, exact.model.precision) == ("int8", "float32")
    texts = texts_of(bundle)
    assert 0 < float(np.abs(quick.scores(texts) - exact.scores(texts)).max()) < 0.1
    assert [c.answers[0].code for c in quick.code(texts)] == [
        c.answers[0].code for c in exact.code(texts)
    ]


def test_the_band_of_near_ties_is_wider_than_rounding(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text within it has the scores of float32, to the last bit; past a bound nothing is coded in
    eight bits.
    """
    texts, graph = texts_of(bundle), Graph.load(bundle, int8=True)
    assert graph.exact is not None
    worst = float(margin_errors(graph.rounded(texts), graph.exact.logits(texts)).max())
    band = rounding.near_tie(graph, bundle)
    assert band is not None
    assert 1.5 * worst <= band <= 1.5 * worst + 0.01
    everything = Graph(graph.session, graph.codes, "int8", 1e9, graph.exact)
    assert np.array_equal(everything.logits(texts), graph.exact.logits(texts))
    monkeypatch.setattr(rounding, "WIDEST", band / 2)
    monkeypatch.setattr(rounding, "SHARE", 0.0)
    assert open_bundle(bundle, precision="auto").model.precision == "float32"
    with pytest.raises(InputError, check=of_kind("no-int8-file")):
        open_bundle(bundle, precision="int8")


@pytest.mark.parametrize("content", [None, "", "{}\n", "[1]\n"])
def test_without_golden_answers_auto_is_float32(bundle: Path, content: str | None) -> None:
    """Nothing to try it on, or nothing that can be read."""
    (bundle / GOLDEN).unlink()
    if content is not None:
        (bundle / GOLDEN).write_text(content)
    assert open_bundle(bundle, precision="auto").model.precision == "float32"


def test_a_job_in_another_precision_is_another_job(bundle: Path, tmp_path: Path) -> None:
    """Pieces coded in eight bits are not merged with those of float32."""
    from storage.tables.narratives import Narratives
    from storage.tables.reader import survey
    from tasks.coding.bundles import Bundles
    from tasks.coding.columns import AnswerColumns

    (tmp_path / "in.csv").write_text("Text\nfell\n")
    job = CodingJob(
        survey(tmp_path / "in.csv", text_columns=("Text",)),
        tmp_path / "out.csv",
        Narratives(("Text",)),
        (AnswerColumns(1, None, grouped=False),),
    )
    keys: set[Any] = {
        job.key(Bundles.of(open_bundle(bundle, precision=p))) for p in ("float32", "int8")
    }
    assert len(keys) == 2
