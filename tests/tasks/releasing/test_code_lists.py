"""What is said of a code list before training is what the plan lists at the release, and what the
gate then holds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from refusals import of_kind
from sealed_bundle import plan

from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code, read_codelist
from storage.datasets import load_codes
from storage.demo_data import narratives, write_demo_data
from storage.ledger.content import anticipated
from tasks.bundle import fill
from tasks.bundle.texts import own_texts
from tasks.fitting.candidate import Candidate
from tasks.fitting.ingest import ingest_figures, ingest_records
from tasks.parameters import RetrainParameters
from tasks.releasing import code_lists
from tasks.releasing.code_lists import Verdict
from tasks.running.stage import run_step

KNOWN_AS = "demo-data"
CODES = ("10", "111", "1311", "161", "1973")
"""On the known list, in its order; 1311 is the one that no record has where only some are observed.
"""
TITLES = (
    "A first matter of our own",
    "A second such",
    "The third of them",
    "And a fourth one",
    "The last of all",
)


def write_list(file: Path, codes: Sequence[Code]) -> str:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("code", "title"), *((one.code, one.title) for one in codes)])
    return str(file)


def write_records(file: Path, codes: Sequence[str]) -> str:
    """Sixteen narratives a code."""
    rows = [
        (text, codes[at % len(codes)])
        for at, text in enumerate(narratives(16 * len(codes), seed=7))
    ]
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("Text", "Code"), *rows])
    return str(file)


def cases(folder: Path) -> Iterator[tuple[str, Sequence[Code], Verdict, str]]:
    """Lists with their verdict and a part of the advice."""
    listed = {
        one.code: one for one in read_codelist(write_demo_data(folder, records=50, seed=1).codelist)
    }
    known = [listed[code] for code in CODES]
    changed = [*known[:1], replace(known[1], title="Broken bones, as we say"), *known[2:]]
    yield "published", list(listed.values()), "published", ""
    yield "in part, in order", known, "published", ""
    yield "not in order", known[::-1], "to be signed", f"the entries of {KNOWN_AS} in another order"
    yield "one title changed", changed, "to be signed", f"the entries of {KNOWN_AS} except entry 2"
    own = [Code(code, title) for code, title in zip(CODES, TITLES, strict=True)]
    yield "unknown", own, "to be signed", "If it is published, register it"
    yield "numbers", [Code(code) for code in CODES], "numbers", ""


def parameters(
    folder: Path, encoder: Path, codes: Sequence[Code], used: Sequence[str], **ingest: Any
) -> RetrainParameters:
    columns = {"text_columns": ["Text"], "label_column": "Code", "date_column": None}
    chosen = {
        "source": write_records(folder / "records.csv", used),
        "codelist": write_list(folder / "list.csv", codes),
        "ingest": columns | ingest,
    }
    return tiny_jobs.retrain(chosen, encoder)


def test_before_training_as_in_the_plan(tmp_path: Path, tiny_roberta: Path) -> None:
    """The verdict names no title; with the records it is the same, and it is as many texts as the
    plan lists.
    """
    for number, (name, codes, verdict, advised) in enumerate(cases(tmp_path / "demo")):
        folder = tmp_path / str(number)
        folder.mkdir()
        context = tiny_jobs.workspace(folder / "home")
        chosen = parameters(folder, tiny_roberta, codes, CODES)
        before = code_lists.assess_parameters(context, chosen)
        assert before is not None
        assert (before.verdict, advised in before.description) == (verdict, True), name
        dataset = run_step(context, ingest_records(chosen.data))
        assert code_lists.assess_parameters(context, chosen) == before
        listed = load_codes(context.store.open(dataset))
        facts = ingest_figures(context.store, dataset)
        assert len(own_texts(listed, facts, str(tiny_roberta))) == before.texts, name
        assert not any(text in before.description for text in (*TITLES, "Broken bones")), name
        assert (before.warning is None) == (verdict != "to be signed")


def test_a_list_without_a_header_is_read_as_the_records_read_it(
    tmp_path: Path, tiny_roberta: Path
) -> None:
    """Read without its settings, such a list would be refused, or be short of its first line."""
    listed = [Code(code, title) for code, title in zip(CODES, TITLES, strict=True)]
    names = {"codelist_read": {"names": ("code", "title")}}
    context = tiny_jobs.workspace(tmp_path / "home")
    chosen = parameters(tmp_path, tiny_roberta, listed, CODES, **names)
    file = tmp_path / "list.csv"
    file.write_text(file.read_text(encoding="utf-8").partition("\n")[2], encoding="utf-8")
    before = code_lists.assess_parameters(context, chosen)
    assert before is not None
    assert before.texts == len(TITLES)
    run_step(context, ingest_records(chosen.data))
    assert code_lists.assess_parameters(context, chosen) == before


def verdict_of(context: Any, chosen: RetrainParameters) -> str:
    found = code_lists.assess_parameters(context, chosen)
    assert found is not None
    return found.verdict


def test_only_what_is_observed_is_listed(tmp_path: Path, tiny_roberta: Path) -> None:
    """A strange title of a code that no record has is in no bundle."""
    (_, listed, _, _), *_ = cases(tmp_path / "demo")
    strange = [
        replace(one, title="Ours") if one.code == "1311" else one
        for one in listed
        if one.code in CODES
    ]
    context = tiny_jobs.workspace(tmp_path / "home")
    used = [code for code in CODES if code != "1311"]
    chosen = parameters(tmp_path, tiny_roberta, strange, used, label_space="observed")
    assert verdict_of(context, chosen) == "to be signed"
    run_step(context, ingest_records(chosen.data))
    assert verdict_of(context, chosen) == "published"


def test_the_rehearsal_holds_the_bundle_to_the_plan(tmp_path: Path, tiny_roberta: Path) -> None:
    """With all entries listed it passes; with one less it is refused, and no title is quoted."""
    codes = [Code(code, title) for code, title in zip(CODES, TITLES, strict=True)]
    context = tiny_jobs.workspace(tmp_path / "home")
    chosen = parameters(tmp_path, tiny_roberta, codes, CODES)
    dataset = run_step(context, ingest_records(chosen.data))
    made: Any = {
        "dataset": dataset,
        "prepared": dataset,
        "fitted": dataset,
        "mechanism": {"kind": "non-private"},
        "is_sampled": False,
        "model": chosen.model,
        "seed": 5,
    }
    candidate = Candidate.model_validate(made)
    row = anticipated(plan("first", candidate), audit=None)
    texts = own_texts(load_codes(context.store.open(dataset)), {}, str(tiny_roberta))
    fill.rehearse(context, row, candidate, chosen.release, texts)
    with pytest.raises(UnsoundBundle, check=of_kind("unsigned-texts"), match=r"\b1\b") as refused:
        fill.rehearse(context, row, candidate, chosen.release, texts[1:])
    assert TITLES[0] not in str(refused.value)
