"""Coding in bfloat16: taken where the golden answers hold, left where they do not, and never mixed in one job."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mechanisms.model import export
from storage.bundle.folder import CODELIST, GOLDEN
from storage.codelist import read_codelist
from tasks.bundle import golden
from tasks.coding import bfloat16
from tasks.coding.coder import open_bundle
from tasks.coding.job import CodingJob


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle with golden answers, on a processor that says it has the instructions."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, folder)
    text = golden.answers_text(open_bundle(folder).model, read_codelist(folder / CODELIST))
    (folder / GOLDEN).write_text(text, encoding="utf-8")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    return folder


def test_auto_takes_bfloat16_where_golden_answers_hold(bundle: Path) -> None:
    """And scores then differ from float32's by rounding alone."""
    quick, exact = open_bundle(bundle, precision="auto"), open_bundle(bundle)
    assert (quick.model.precision, exact.model.precision) == ("bfloat16", "float32")
    texts = [json.loads(line)["text"] for line in (bundle / GOLDEN).read_text().splitlines()]
    far = (quick.scores(texts) - exact.scores(texts)).abs().max()
    assert 0 < float(far) < 0.1


def test_auto_leaves_bfloat16_where_a_code_changes(bundle: Path) -> None:
    """Answers of another model: each narrative's first code is now one of its last."""
    lines = [json.loads(line) for line in (bundle / GOLDEN).read_text().splitlines()]
    for line in lines:
        line["codes"] = [*line["codes"][1:], line["codes"][0]]
    (bundle / GOLDEN).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert open_bundle(bundle, precision="auto").model.precision == "float32"
    assert open_bundle(bundle, precision="bfloat16").model.precision == "bfloat16", "who asks for it gets it"


def test_the_band_of_near_ties_is_as_wide_as_rounding(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of larger weights has larger logits, and larger errors of them; past a bound it is float32's."""
    quick = replace(open_bundle(bundle).model, precision="bfloat16")
    texts = [json.loads(line)["text"] for line in (bundle / GOLDEN).read_text().splitlines()]
    worst = float(export.margin_errors(quick, texts).max())
    assert worst > 0
    monkeypatch.setattr(bfloat16, "NEAR_TIE", 2 * worst)
    assert open_bundle(bundle, precision="auto").model.near_tie == 2 * worst, "and never narrower than this"
    monkeypatch.setattr(bfloat16, "NEAR_TIE", worst / 2)
    assert worst <= open_bundle(bundle, precision="auto").model.near_tie <= worst + 0.01
    lead = float(export.lead_of(quick.logits(texts))[0].median())
    for bound, other, of in (("WIDEST", "SHARE", 1.0), ("SHARE", "WIDEST", lead)):
        monkeypatch.setattr(bfloat16, other, 0.0)
        for most, taken in ((1.01 * worst, "bfloat16"), (0.99 * worst, "float32")):
            monkeypatch.setattr(bfloat16, bound, most / of)
            assert open_bundle(bundle, precision="auto").model.precision == taken


def test_a_head_of_larger_weights_is_still_coded_in_bfloat16(bundle: Path) -> None:
    """Larger logits, as a fit with noise has them, and errors half as large again as the band, which grows."""
    narrow = open_bundle(bundle, precision="auto").model
    head: Any = narrow.model
    texts = [json.loads(line)["text"] for line in (bundle / GOLDEN).read_text().splitlines()]
    # not by a fixed factor: how far the errors of this bundle lie below the band differs from one to the next
    factor = 1.5 * narrow.near_tie / float(export.margin_errors(narrow, texts).max())
    with torch.no_grad():
        for part in head.head.parameters():
            part.mul_(factor)
    text = golden.answers_text(replace(narrow, precision="float32"), read_codelist(bundle / CODELIST))
    (bundle / GOLDEN).write_text(text, encoding="utf-8")
    wide = bfloat16.near_tie(narrow, bundle)
    assert wide is not None
    assert wide > narrow.near_tie
    assert float(export.margin_errors(narrow, texts).max()) <= wide


@pytest.mark.parametrize("content", [None, "", "{}\n", "[1]\n", '{"text": "a", "codes": ["x"], "scores": []}\n'])
def test_without_golden_answers_auto_is_float32(bundle: Path, content: str | None) -> None:
    """Nothing to try it on, or nothing that can be read."""
    (bundle / GOLDEN).unlink()
    if content is not None:
        (bundle / GOLDEN).write_text(content)
    assert open_bundle(bundle, precision="auto").model.precision == "float32"


def test_a_job_in_another_precision_is_another_job(bundle: Path, tmp_path: Path) -> None:
    """Pieces coded on a processor with the instructions are not merged with those of one without."""
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
    keys: set[Any] = {job.key(Bundles.of(open_bundle(bundle, precision=p))) for p in ("float32", "bfloat16")}
    assert len(keys) == 2
