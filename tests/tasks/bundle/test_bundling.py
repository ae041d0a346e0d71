"""What a bundle holds beside the model: bill of materials, card, statement, test vectors; and what
stops it early.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from refusals import of_kind
from releases import make_plan
from safetensors.torch import load_file
from sealed_bundle import Sealed, plan

import storage
from flows import cli
from mechanisms.model import export
from mechanisms.privacy.events import GaussianReleaseEvent
from mechanisms.privacy.numerics import epsilon_text
from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code, read_codelist
from storage.egress import gate
from storage.egress.allow_list import CONTENT, ENCODER, GoldenAnswer
from storage.egress.documents import faults
from storage.errors import InputError
from storage.figures import escape
from storage.ledger.content import anticipated
from storage.ledger.policy import RegistryStatement
from tasks.bundle import fill, golden
from tasks.bundle.deployment import Deployment
from tasks.bundle.fill import CLIENTS
from tasks.pages.render import render
from tasks.parameters import BundleParameters
from tasks.releasing import publish


def test_the_bill_of_materials_is_cyclonedx(sealed: Sealed) -> None:
    """Held against the format's own strict schema, and it names the weights' digests, encoder and
    model card.
    """
    text = (sealed.folder / bundle.MATERIALS).read_text()
    problem = JsonStrictValidator(SchemaVersion.V1_7).validate_str(text)
    assert problem is None, problem
    bill = json.loads(text)
    files = {part["name"]: part for part in bill["components"] if part["type"] == "file"}
    assert set(files) == {
        "0_Transformer/model.safetensors",
        "2_Dense/model.safetensors",
        "0_Transformer/tokenizer.json",
        "0_Transformer/tokenizer_config.json",
    }
    from storage.artifacts import file_digest

    for name, part in files.items():
        assert part["hashes"][0]["content"] == file_digest(sealed.folder / name)
    component = bill["metadata"]["component"]
    assert component["modelCard"]["modelParameters"]["task"] == "text-classification"
    assert component["version"] == sealed.row.release_id


def test_the_code_list_names_its_classification(sealed: Sealed) -> None:
    """In every row, so that anyone who codes can tell versions apart."""
    lines = (sealed.folder / bundle.CODELIST).read_text().splitlines()
    assert lines[0] == "code,title,classification,version"
    assert all(line.endswith(",OIICS,2.01") for line in lines[1:])


def test_card_and_page_agree_with_the_statement(sealed: Sealed) -> None:
    """Every figure that people read is the machine-readable one; the card's metadata are on the
    hub's list.
    """
    statement = json.loads((sealed.folder / bundle.STATEMENT).read_text())
    written, page = (
        (sealed.folder / bundle.CARD).read_text(),
        (sealed.folder / bundle.PAGE).read_text(),
    )
    assert f"ε {epsilon_text(Decimal(statement['epsilon']))} was estimated" in page
    for text in (written, page):
        assert statement["release_id"] in text
    for line in statement["does_not_mean"]:
        assert escape(line) in page or line in page
    assert "fitted on generated narratives" in written
    assert "46 codes of OIICS 2.01" in written
    assert "license: apache-2.0" in written
    assert "Apache License" in (sealed.folder / bundle.LICENCE).read_text()


def test_a_formal_statement_says_another_thing(sealed: Sealed) -> None:
    """The two types of guarantee are not described in the same words."""
    statement = json.loads((sealed.folder / bundle.STATEMENT).read_text())
    formal = statement | {
        "guarantee_kind": "formal",
        "delta": "0.000001",
        "sensitivity": None,
        "mechanism": "dp-sgd",
    }
    page = render("statement.md", statement=formal)
    assert "trained with differential privacy" in page
    assert "δ = 1e-6." in page
    assert "was estimated on these records" not in page
    assert "differential privacy: ε" not in render("statement.md", statement=statement)
    options = {
        "encoder": "e",
        "training": "unchanged",
        "mean_pooled": False,
        "example": "x",
        "lexical": "none",
        "columns": "",
        "labels": 3,
        "licence": None,
    }
    options |= {
        "encoded_in": "bfloat16",
        "classification": "",
        "thresholds": None,
        "accuracy": None,
        "untold": "there are too few held-out records",
        "language_code": None,
        "graphs": {},
        "sizes": {},
    }
    options |= {"weights": [], "clients": CLIENTS}
    written = render("card.md", statement=formal, precision="bfloat16", **options)
    assert "one training run with noise" in written
    assert "Codes free text into 3 codes (listed" in written
    assert "The encoder is e, unchanged." in written
    assert "rounded to bfloat16" in written
    assert "trained on what the encoder gave in bfloat16" in written
    assert "license: other" in written
    assert "No thresholds come with this model" in written


def _codes(folder: Path) -> tuple[Code, ...]:
    return read_codelist(folder / bundle.CODELIST)


def _answers(folder: Path) -> list[GoldenAnswer]:
    return [
        json.loads(line) for line in (folder / bundle.GOLDEN).read_text().rstrip("\n").split("\n")
    ]


def test_golden_texts_are_of_the_task_and_owe_nothing_to_a_record() -> None:
    """Titles of the list whatever it codes, the same for the same list; codes where there are no
    titles.
    """
    jobs = [Code(str(n), f"Job {n}") for n in range(100)]
    assert len(set(golden.texts(jobs))) == 48
    assert set(golden.texts(jobs)) <= {code.title for code in jobs}
    assert golden.texts(jobs) == golden.texts(list(jobs))
    few = golden.texts(jobs[:10])
    assert (len(set(few)), set(few[:10])) == (48, {code.title for code in jobs[:10]})
    assert set(golden.texts([Code("11"), Code("12")])) == {
        "code 11",
        "code 12",
        "code 11; code 12",
        "code 12; code 11",
    }


def test_card_and_materials_say_what_the_encoder_is(sealed: Sealed) -> None:
    """Of a head on a frozen encoder the bundle holds the public encoder, bit for bit: nothing calls
    it fine-tuned.
    """
    published = load_file(Path(sealed.candidate.model.encoder) / "model.safetensors")
    released = load_file(sealed.folder / "0_Transformer" / "model.safetensors")
    shared = {
        name: tensor
        for stem in ("", "roberta.")
        for name in released
        if (tensor := published.get(stem + name)) is not None
    }
    assert len(shared) > 10
    assert all(torch.equal(released[name], tensor) for name, tensor in shared.items())
    card, bill = (sealed.folder / name for name in (bundle.CARD, bundle.MATERIALS))
    for text in (card.read_text(), bill.read_text()):
        assert "as it was published, bit for bit" in text
        assert "ine-tuned" not in text
    model = sealed.candidate.model
    assert "rounded to bfloat16" in fill.describe_training(model, precision="bfloat16")
    for part, words in (("lora", "adapters"), ("full", "fine-tuned on the records")):
        changed = model.model_copy(update={"trainable": part})
        assert words in fill.describe_training(changed, precision="float32")


def test_golden_answers_are_those_of_the_loaded_folder(sealed: Sealed) -> None:
    """The released folder gives them; a moved score does not pass, nor one that is no number."""
    answers, released = _answers(sealed.folder), export.load(sealed.folder)
    golden.check(released, answers)
    assert [answer["text"] for answer in answers] == list(golden.texts(_codes(sealed.folder)))
    first, *others = answers[0]["scores"]
    worst = released.codes[int(released.logits([answers[0]["text"]]).argmin())]
    moved_answers: tuple[GoldenAnswer, ...] = (
        {**answers[0], "scores": [first + 3 * golden.TOLERANCE, *others]},
        {**answers[0], "codes": [worst, *answers[0]["codes"][1:]]},
        {**answers[0], "scores": [float("nan"), *others]},
    )
    for moved in moved_answers:
        with pytest.raises(UnsoundBundle, check=of_kind("answer-differs", saying="narrative 1")):
            golden.check(released, [moved])


def test_golden_answers_in_a_plain_library(sealed: Sealed) -> None:
    """What a partner gets who follows the card and knows nothing of this project."""
    import warnings

    from sentence_transformers import SentenceTransformer

    answers = _answers(sealed.folder)
    codes = json.loads((sealed.folder / "labels.json").read_text())["codes"]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # of the older module names, which the folder uses on purpose
        model = SentenceTransformer(str(sealed.folder), device="cpu").float()
    texts = [answer["text"] for answer in answers]
    scores = model.encode(texts, convert_to_tensor=True, show_progress_bar=False).softmax(-1)
    for row, answer in zip(scores.tolist(), answers, strict=True):
        found = {codes[at]: score for at, score in enumerate(row)}
        told = [found[code] for code in answer["codes"]]
        assert told == pytest.approx(answer["scores"], abs=golden.TOLERANCE)
        assert max(row) == pytest.approx(told[0], abs=golden.TOLERANCE)


def test_bfloat16_and_another_licence(sealed: Sealed, tmp_path: Path) -> None:
    """Half the bytes, within a rounding of the same answers, through the same gate; the licence is
    the operator's.
    """
    folder = tmp_path / "half"
    folder.mkdir()
    sealed.refill(folder, precision="bfloat16", licence="MIT")
    for name in ("0_Transformer/model.safetensors", "2_Dense/model.safetensors"):
        whole, half = (sealed.folder / name).stat().st_size, (folder / name).stat().st_size
        assert half < 0.65 * whole
    assert json.loads((folder / "0_Transformer" / "config.json").read_text())["dtype"] == "bfloat16"
    assert (folder / bundle.LICENCE).read_text().startswith("SPDX-License-Identifier: MIT\n")
    scores = [
        export.load(f).logits(golden.texts(_codes(sealed.folder))).softmax(-1)
        for f in (sealed.folder, folder)
    ]
    assert 0 < float((scores[0] - scores[1]).abs().max()) < 0.05


@pytest.mark.parametrize("epsilon", [8.7, 9.9, 25.0])
def test_any_epsilon_that_a_budget_covers_can_leave(sealed: Sealed, epsilon: float) -> None:
    """In words it is "more than a billion" in the statement, which no template has, and the default
    cap is 10.
    """
    claim = {"epsilon": epsilon, "delta": 1e-6}
    planned = plan("large", sealed.candidate)
    event = GaussianReleaseEvent(what="a head", noise_multiplier=0.6, l2_sensitivity=1.0)
    own = {"artifact_digests": planned.artifact_digests, "event": event, "population": "demo"}
    formal = make_plan("large", kind="formal", claim=claim, **own)
    fill.rehearse(
        sealed.context, anticipated(formal, audit=None), sealed.candidate, BundleParameters()
    )


def test_what_cannot_leave_is_told_before_the_budget_is_charged(
    sealed: Sealed, tiny_roberta: Path, tmp_path: Path
) -> None:
    """An encoder with a field that is not on the list, and a licence that is not there; and nothing
    is left behind.
    """
    settings, row = BundleParameters(), anticipated(plan("rehearsed", sealed.candidate), audit=None)
    fill.rehearse(sealed.context, row, sealed.candidate, settings)
    assert not list((sealed.home / "private" / "rehearsal").iterdir())
    odd = tmp_path / "odd-encoder"
    shutil.copytree(tiny_roberta, odd)
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(config | {"trained_on_records_of": "hospital 7"}))
    model = sealed.candidate.model.model_copy(update={"encoder": str(odd)})
    with pytest.raises(
        UnsoundBundle, check=of_kind("schema-violation", saying="trained_on_records_of")
    ) as refused:
        fill.rehearse(
            sealed.context, row, sealed.candidate.model_copy(update={"model": model}), settings
        )
    assert "hospital" not in str(refused.value)
    with pytest.raises(InputError, check=of_kind("unknown-licence")):
        fill.rehearse(
            sealed.context, row, sealed.candidate, BundleParameters(licence=str(tmp_path / "none"))
        )
    with pytest.raises(InputError, check=of_kind("unreadable-file", saying="none")):
        publish._release_key(sealed.context, BundleParameters(signing_key=str(tmp_path / "none")))


def test_a_record_for_regulators_travels_in_the_bundle(sealed: Sealed, tmp_path: Path) -> None:
    """Where the policy states what a registry asks for: record, answers, and links from card, page
    and statement.

    Without such a policy both name the command that makes them. The gate compares both with what
    the policy states.
    """
    stated = RegistryStatement(
        curators=("Bureau of Injuries",),
        region="United States",
        domain="records that employers send",
        actors="the bureau trains; partners get bundles",
        refreshment="each quarter",
        justification="decided by the board",
        authors=("A. Officer",),
    )
    drawn = sealed.ledger.state().release(sealed.row.release_id).drawn
    assert drawn is not None
    charges = sealed.ledger.charges(str(sealed.row.release_id))
    folder = tmp_path / "with"
    folder.mkdir()
    expected = sealed.refill(folder, deployment=Deployment(drawn, charges, stated, repeated=False))
    record = json.loads((folder / bundle.RECORD).read_text())
    assert record["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == float(
        epsilon_text(drawn.epsilon or 0)
    )
    assert record["deployment"]["basic"]["data_curators"] == ["Bureau of Injuries"]
    assert "Which data sets are neighbours?" in (folder / bundle.ANSWERS).read_text()
    assert json.loads((folder / bundle.STATEMENT).read_text())["documents"] == [
        bundle.RECORD,
        bundle.ANSWERS,
    ]
    for page in (bundle.CARD, bundle.PAGE):
        text = (folder / page).read_text()
        assert f"]({bundle.RECORD})" in text
        assert f"]({bundle.ANSWERS})" in text
    told = (sealed.folder / bundle.PAGE).read_text()
    assert "export record" not in told  # without a statement for registries there is none
    (words,) = re.findall(r"`autocoder (ledger export [^`]+)`", told)
    assert sealed.row.release_id in words
    command: Any = typer.main.get_command(cli.app)
    group, name, *given = shlex.split(words)
    exporting = command.commands[group].commands[name]
    parsed = exporting.make_context(name, given).params
    assert (parsed["what"], parsed["release"]) == ("page", sealed.row.release_id)
    gate.inspect(folder, expected)
    (folder / bundle.ANSWERS).write_text(
        (folder / bundle.ANSWERS).read_text() + sealed.narratives[0]
    )
    with pytest.raises(UnsoundBundle, check=of_kind("differs-from-plan")) as refused:
        gate.inspect(folder, expected)
    assert refused.value.file == bundle.ANSWERS


READ = {
    f"{ENCODER}config.json": "encoder_config",
    f"{ENCODER}tokenizer.json": "tokenizer",
    f"{ENCODER}tokenizer_config.json": "tokenizer_config",
    "modules.json": "modules",
    "1_Pooling/config.json": "pooling",
    "2_Dense/config.json": "dense",
    "lexicon.json": "lexicon",
    "labels.json": "labels",
    bundle.STATEMENT: "privacy_statement",
    bundle.THRESHOLDS: "thresholds",
    bundle.GOLDEN: "golden",
    bundle.PROOF: "ledger_proof",
}
"""Parts of the schema, by a file that each describes."""


def _short(value: Any) -> Any:
    """A document with the first eight entries of each long list and map, such as the words of a
    lexicon, whose entries are all described by one part of the schema.
    """
    if isinstance(value, list):
        return [_short(entry) for entry in value[: 8 if len(value) > 40 else None]]
    if isinstance(value, dict):
        names = list(value)[: 8 if len(value) > 40 else None]
        return {name: _short(value[name]) for name in names}
    return value


def _changed(value: Any) -> Iterator[Any]:
    """A document with each of its fields replaced, removed or joined by another, in turn."""
    yield from (None, True, 7, -1, 0.5, "", "a b", "x" * 5000, [], [[], []], {}, {"x": 1})
    if isinstance(value, list):
        yield [*value, *value[:1]]
        for place in range(min(len(value), 3)):
            yield from (
                [*value[:place], other, *value[place + 1 :]] for other in _changed(value[place])
            )
    if isinstance(value, dict):
        yield value | {"y" * 130: "x"}
        for field in list(value)[:40]:
            yield {name: entry for name, entry in value.items() if name != field}
            yield from (value | {field: other} for other in _changed(value[field]))


def test_the_schema_is_sound_and_read_as_jsonschema_reads_it(
    sealed: Sealed, titled: Sealed
) -> None:
    """Every file whole, and a short one changed in each field; and what the pipeline adds to a
    model is on the gate's list.
    """
    from jsonschema import Draft202012Validator

    assert bundle.OWN_FILES < CONTENT
    file = Path(storage.__file__ or "").parent / "schemas" / "bundle.schema.json"
    schema = json.loads(file.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    for name, part in READ.items():
        path = next(path for one in (sealed, titled) if (path := one.folder / name).is_file())
        document = json.loads(path.read_text(encoding="utf-8").partition("\n{")[0])
        reference = {"$ref": f"#/$defs/{part}"}
        other = Draft202012Validator(reference | {"$defs": schema["$defs"]})
        for whole in (document, _short(document)):
            assert other.is_valid(whole)
            assert not any(faults(reference, whole))
        answers = [
            (other.is_valid(changed), any(faults(reference, changed)))
            for changed in _changed(_short(document))
        ]
        assert set(answers) == {(True, False), (False, True)}, name
