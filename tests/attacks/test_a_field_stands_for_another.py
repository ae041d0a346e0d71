"""Would win: one field's codes or thresholds in the place of another's, a field less, a narrative cut over two lists,
and a record that lacks a field seen in what is told of all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from mechanisms.model import export
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.errors import InputError
from tasks.bundle import golden
from tasks.bundle.texts import own_texts
from tasks.coding.joint import open_bundle
from tasks.releasing.plan_artifacts import field_names

DECLARES = (
    (
        "a field of a bundle is that field",
        "code lists, thresholds, golden answers or layers of two fields swapped; a field less, one made "
        "of two, another order; a folder that no field is named after; a sentence cut over two fields' "
        "lists",
        "all files of one field in the place of another's: the signature detects that",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

SECRET = "His left glove was pulled into the tail pulley of a belt."
"""So short that neither half alone is told from chance."""


def _swap(folder: Path, file: str) -> None:
    one, other = folder / "nature" / file, folder / "event" / file
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def _thresholds(folder: Path) -> None:
    shutil.copy(folder / "nature" / "thresholds.json", folder / "event" / "thresholds.json")


def _less(folder: Path) -> None:
    shutil.rmtree(folder / "event")
    (folder / "labels.json").write_text(json.dumps({"fields": ["nature", "source"]}))
    shutil.copytree(folder / "nature", folder / "source", ignore=shutil.ignore_patterns("thresholds.json"))


def _one(folder: Path) -> None:
    """A bundle of one field made of it, under the statement of both."""
    shutil.rmtree(folder / "event")
    for path in (folder / "nature").iterdir():
        shutil.move(path, folder / path.name)
    (folder / "nature").rmdir()
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    known = json.loads((folder / "thresholds.json").read_text())
    known.pop("field")
    (folder / "thresholds.json").write_text(json.dumps(known))


def _order(folder: Path) -> None:
    (folder / "labels.json").write_text(json.dumps({"fields": ["event", "nature"]}))


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "code lists": (lambda folder: _swap(folder, "codelist.csv"), "lists other codes than the model"),
    "thresholds": (_thresholds, "is of another field"),
    "golden answers": (lambda folder: _swap(folder, "golden.jsonl"), "has a code that is not on the list"),
    "layers": (lambda folder: _swap(folder, "2_Dense/model.safetensors"), "other tensors than its configuration"),
    "a field less": (_less, "is of other fields than the model codes"),
    "one of two": (_one, "is of other fields than the model codes"),
    "another order": (_order, "is of other fields than the model codes"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_field_in_the_place_of_another(joint: Sealed, tmp_path: Path, name: str) -> None:
    """Signed, each is refused by its signature; made whole again without one, by what the files say of each other."""
    attack, said = ATTACKS[name]
    folder = joint.copy(tmp_path)
    attack(folder)
    with pytest.raises(UnsoundBundle):
        check(folder, joint.trust)
    with pytest.raises(UnsoundBundle, match=said):
        check(joint.unsigned_proof(folder), None, unsigned=True)


@pytest.mark.parametrize("name", ["code lists", "thresholds", "a field less", "one of two", "another order"])
def test_a_bundle_that_nobody_verified_does_not_code_either(joint: Sealed, tmp_path: Path, name: str) -> None:
    """Whoever codes without `verify` gets no nature under the name of an event."""
    folder = joint.copy(tmp_path)
    ATTACKS[name][0](folder)
    with pytest.raises(InputError, match="--bundle"):
        open_bundle(folder)


def test_layers_and_lists_of_one_size_that_change_places(joint: Sealed, tmp_path: Path) -> None:
    """Everything of both fields swapped, and only their names kept: the golden answers are the model's still, and the
    digests of the ledger's proof are not."""
    folder = joint.copy(tmp_path)
    (folder / "nature").rename(folder / "third")
    (folder / "event").rename(folder / "nature")
    (folder / "third").rename(folder / "event")
    with pytest.raises(UnsoundBundle, match="is of another field"):
        check(joint.unsigned_proof(folder), None, unsigned=True)
    (folder / "event" / "thresholds.json").unlink()
    found = check(joint.unsigned_proof(folder), None, unsigned=True)
    for field, own in export.load(folder).fields.items():
        golden.check(own, found.contents[f"{field}/golden.jsonl"])
    with pytest.raises(UnsoundBundle):
        check(folder, joint.trust)


def test_a_folder_of_no_field(joint: Sealed, tmp_path: Path) -> None:
    """A file that could be a field's may not lie where no field is named."""
    folder = joint.copy(tmp_path)
    (folder / "private").mkdir()
    (folder / "private" / "labels.json").write_text('{"codes": ["1", "2"]}')
    with pytest.raises(UnsoundBundle, match="private"):
        check(joint.unsigned_proof(folder), None, unsigned=True)


def test_a_narrative_cut_over_two_fields_lists(joint: Sealed) -> None:
    """A sentence whose words are the last title of one list and the first of the next: both are listed, by field."""
    halves = {"nature": [Code("1", SECRET[:29])], "event": [Code("1", SECRET[29:])]}
    listed = own_texts(halves, {}, joint.candidate.model.encoder)
    assert listed == (f"code list of nature: 1 {SECRET[:29]}".rstrip(), f"code list of event: 1 {SECRET[29:]}")


def test_who_lacks_a_field_is_not_counted(joint: Sealed) -> None:
    """No file of the bundle, and nothing that a plan takes from the ingest, says how many records have which field."""
    facts = joint.context.store.figures(joint.candidate.dataset)
    lacking = facts["records"] - facts["records"] // 4
    assert field_names(facts) == ("nature", "event")
    assert all(
        set(field) <= {"name", "codes_observed", "label_space", "label_space_source"} for field in facts["fields"]
    )
    counts = {str(lacking), str(facts["records"] - lacking), f"{lacking:,}"} - {str(facts["records"])}
    for path in joint.folder.rglob("*"):
        if path.suffix in {".json", ".md"} and "tokenizer" not in path.name and path.name != "config.json":
            said = path.read_text(encoding="utf-8")
            assert not any(f" {count} records" in said or f" {count} of" in said for count in counts), path.name
            assert "lacks" not in said or path.name in {"PRIVACY.md", "privacy_statement.json"}
