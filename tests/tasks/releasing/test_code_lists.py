"""What is said of a code list before training is what the gate says of it at the release."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from sealed_bundle import plan

from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code, read_codelist
from storage.demo_data import narratives, write_demo_data
from storage.egress import published
from storage.errors import InputError
from storage.ledger.content import anticipated
from tasks.bundle import fill
from tasks.fitting import data
from tasks.fitting.candidate import Candidate
from tasks.parameters import RetrainParameters
from tasks.releasing import code_lists, preflight
from tasks.releasing.code_lists import Verdict
from tasks.retraining import run as retraining
from tasks.running.stage import Context, Step, run_step

KNOWN_AS = "invented-of-storage.demo-data"
SAID = "Cerebral and other intracranial hemorrhages"
"""A title of the known list, and a whole narrative of four records."""
LICENSED = "Grant of Copyright License"
"""A heading of the Apache licence, and a narrative."""
OWN = "The crew had a yellow wheelbarrow and two spare ladders with them."
"""A narrative."""
CODES = ("10", "111", "1311", "161", "1973")
"""On the known list, in its order; 1311 is the one that no record has where only some are observed."""


@dataclass(frozen=True)
class Case:
    """A code list, and what the gate must say of it."""

    codes: Sequence[Code]
    verdict: Verdict
    before: Verdict | None = None
    """Before the records are read, where that is something else."""
    advice: str = ""
    data: dict[str, Any] | None = None
    ingest: dict[str, Any] | None = None
    without: str | None = None
    """A code that no record has."""
    licence: str | None = None


def known_list(folder: Path) -> dict[str, Code]:
    """The list of the invented narratives, by code."""
    codes = read_codelist(write_demo_data(folder, records=50, seed=1).codelist)
    return {one.code: one for one in codes}


def write_list(file: Path, codes: Sequence[Code]) -> str:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("code", "title"), *((one.code, one.title) for one in codes)])
    return str(file)


def write_records(file: Path, codes: Sequence[str]) -> str:
    """Sixteen narratives a code, four of SAID, and one each of the other two."""
    texts = [*narratives(16 * len(codes), seed=7), *[SAID] * 4, LICENSED, OWN]
    rows = [(text, codes[at % len(codes)], codes[at % len(codes)]) for at, text in enumerate(texts)]
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("Text", "Code", "Again"), *rows])
    return str(file)


def cases(listed: dict[str, Code]) -> Iterator[tuple[str, Case]]:
    known = [listed[code] for code in CODES]
    titles = ["A first matter of our own", "A second such", "The third of them", "And a fourth one", "The last of all"]
    own = [Code(code, title) for code, title in zip(CODES, titles, strict=True)]
    entries = [*known[:1], replace(known[1], title="Broken bones, as we say"), *known[2:]]
    yield "known", Case(list(listed.values()), "known")
    yield "in part, in order", Case(known, "known")
    yield (
        "in part, not in order",
        Case(known[::-1], "refused", "not read", advice=f"those of {KNOWN_AS} in another order"),
    )
    yield "one title changed", Case(entries, "refused", "not read", advice=f"those of {KNOWN_AS} but for entry 2")
    said = [replace(one, title=SAID) if one.code == "161" else one for one in own]
    yield "unknown", Case(said, "refused", "not read", advice="if the list is published, have it made known as such")
    over = [replace(one, title=part) for one, part in zip(own, (OWN[:25], OWN[25:], "A", "B", "C"), strict=True)]
    yield "unknown, over two titles", Case(over, "refused", "not read")
    yield "unknown, and no record says it", Case(own, "harmless", "not read")
    public = [replace(one, title=LICENSED) if one.code == "10" else one for one in own]
    yield "unknown, and public anyway", Case(public, "harmless", "not read")
    yield "unknown, and public by another licence", Case(public[::-1], "refused", "not read", licence="MIT")
    yield "no titles", Case([Code(code) for code in CODES], "no titles")
    observed = {"label_space": "observed"}
    of_none = [replace(one, title=SAID) if one.code == "1311" else one for one in own]
    yield (
        "observed, said by a title that is not",
        Case(of_none, "harmless", "not read", ingest=observed, without="1311"),
    )
    yield "observed of a known list", Case(known, "known", ingest=observed, without="1311")
    strange = [replace(one, title="Ours") if one.code == "1311" else one for one in known]
    yield "observed, and what is strange is not", Case(strange, "known", "not read", ingest=observed, without="1311")
    named = {"classification": "The crew had a yellow wheelbarrow"}
    yield "known, with a name that is a narrative", Case(known, "refused", "known", data=named, advice=KNOWN_AS)
    scored = [replace(one, title="Precision of 3") if one.code == "111" else one for one in known]
    yield "a title that reads like a score", Case(scored, "refused", advice="in entry 2 of the code list")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One workspace, so that one key chooses the windows that the gate keeps."""
    return tmp_path_factory.mktemp("lists")


def parameters(home: Path, encoder: Path, case: Case, *, enabled: bool = False) -> RetrainParameters:
    used = [code for code in CODES if code != case.without]
    columns = {"text_columns": ["Text"], "label_column": "Code", "date_column": None}
    chosen: dict[str, Any] = {
        "source": write_records(home / f"records-{len(used)}.csv", used),
        "codelist": write_list(
            home / f"list-{published.digest([one.as_json() for one in case.codes])[:12]}.csv", case.codes
        ),
        "ingest": columns | (case.ingest or {}),
    }
    made = tiny_jobs.retrain(chosen | (case.data or {}), encoder)
    wanted = made.release.model_copy(update={"enabled": enabled, "licence": case.licence})
    return made.model_copy(update={"release": wanted})


def gate_says(context: Context, chosen: RetrainParameters) -> str | None:
    """What the release's own rehearsal says: the whole bundle is written, and read by the gate. None: it may leave."""
    dataset = run_step(context, data.ingest(chosen.data))
    made: Any = {"dataset": dataset, "prepared": dataset, "fitted": dataset, "model": chosen.model, "seed": 5}
    row = anticipated(plan("first"), audit=None)
    try:
        fill.rehearse(context, row, Candidate.model_validate(made), chosen.release)
    except UnsoundBundle as refused:
        return f"{refused.file} {refused.problem}"
    return None


def test_before_training_as_at_the_release(home: Path, tiny_roberta: Path) -> None:
    """On lists that are known, in part, nearly, not at all but harmless, and not at all; in the gate's own words."""
    context = tiny_jobs.workspace(home)
    for name, case in cases(known_list(home / "demo")):
        chosen = parameters(home, tiny_roberta, case)
        (word,) = code_lists.of_parameters(context, chosen)
        assert word.verdict == (case.before or case.verdict), name
        assert case.advice in word.said or word.verdict == "known", name
        said = gate_says(context, chosen)
        (word,) = code_lists.of_parameters(context, chosen)  # now against the records
        assert (word.verdict, word.fault) == (case.verdict, said or ""), name
        assert (word.verdict == "refused") == (said is not None), name
        assert case.advice in word.said, name
        assert not any(text in word.said for text in (SAID, OWN[:20], "Broken bones")), name


def two_fields(folder: Path, encoder: Path, first: Sequence[Code], second: Sequence[Code]) -> RetrainParameters:
    """Records that have two fields, each coded by a list of its own."""
    folder.mkdir()
    ingest = {
        "text_columns": ["Text"],
        "date_column": None,
        "fields": {
            "nature": {"label_column": "Code", "codelist": write_list(folder / "nature.csv", first)},
            "event": {"label_column": "Again", "codelist": write_list(folder / "event.csv", second)},
        },
    }
    return tiny_jobs.retrain({"source": write_records(folder / "records.csv", CODES), "ingest": ingest}, encoder)


def test_each_of_several_fields(home: Path, tiny_roberta: Path) -> None:
    """By its own list, and by what is cut over two; the gate refuses the same, before anything is charged."""
    context, listed = tiny_jobs.workspace(home), known_list(home / "demo")
    known = [listed[code] for code in CODES]
    own = [
        Code(code, f"{title} one of our own")
        for code, title in zip(CODES, ("A", "Some", "No", "Each", "That"), strict=True)
    ]
    said = [replace(one, title=SAID if one.code == "161" else "Other") for one in own]
    halves = [*own[:4], replace(own[4], title=OWN[:27])], [replace(own[0], title=OWN[27:48]), *own[1:]]
    for number, (first, second, verdicts, file) in enumerate(
        (
            (known, own, ("known", "harmless"), None),
            (
                known,
                [replace(one, title=SAID) if one.code == "161" else one for one in own],
                ("known", "harmless"),
                None,
            ),
            (own, said, ("harmless", "refused"), "event/codelist.csv"),
            (*halves, ("refused", "harmless"), "codelist.csv"),
        )
    ):
        chosen = two_fields(home / f"fields-{number}", tiny_roberta, first, second)
        said_by_gate = gate_says(context, chosen)
        words = code_lists.of_parameters(context, chosen)
        assert [word.field for word in words] == ["nature", "event"]
        assert tuple(word.verdict for word in words) == verdicts
        assert next((word.fault for word in words if word.fault), None) == said_by_gate
        if file is None:
            code_lists.require(chosen, words)
            assert said_by_gate is None
            continue
        assert said_by_gate is not None
        assert said_by_gate.startswith(file)
        at = f"data.ingest.fields.{('nature', 'event')[verdicts.index('refused')]}.codelist "
        with pytest.raises(InputError, match=re.escape(at)):
            code_lists.require(chosen, words)


def test_it_is_told_before_anything_is_trained(home: Path, tiny_roberta: Path) -> None:
    """With --release the run ends behind ingest, and the next one before it; one that stops at a plan goes on."""
    listed = known_list(home / "demo")
    case = Case([replace(listed[code], title=SAID) if code == "10" else listed[code] for code in CODES], "refused")

    class Trains(Exception):
        """A step behind ingest was asked for."""

    def until_trained(context: Context, taken: list[str]) -> Any:
        def do(step: Step) -> Any:
            taken.append(step.name)
            if step.name not in ("ingest", "titles"):
                raise Trains
            return run_step(context, step)

        return do

    for enabled in (False, True):
        context, taken = tiny_jobs.workspace(home / f"enabled-{enabled}"), []
        chosen = parameters(home, tiny_roberta, case, enabled=enabled)
        preflight.check(context, chosen, to_release=True)
        with pytest.raises(InputError if enabled else Trains) as refused:
            retraining.run(context, chosen, until_trained(context, taken), prefect_run_id=None)
        assert taken == (["ingest"] if enabled else ["ingest", "features"])
        if not enabled:
            preflight.check(context, chosen, to_release=True)
            continue
        with pytest.raises(InputError) as again:
            preflight.check(context, chosen, to_release=True)
        assert str(again.value) == str(refused.value)
        assert str(again.value).startswith(f"--codelist (data.codelist) {chosen.data.codelist}: the gate would refuse")
        assert SAID not in str(again.value)
