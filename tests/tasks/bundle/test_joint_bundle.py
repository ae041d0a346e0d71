"""A bundle of several fields: what lies where, and that plain libraries and this program read the same from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sealed_bundle import Sealed

from mechanisms.errors import MechanismError
from mechanisms.model import export
from storage.bundle.archive import open_folder, pack
from storage.bundle.check import check
from storage.egress.allow_list import allowed_content, allowed_files, file_kind, read_fields
from tasks.bundle import golden, thresholds
from tasks.releasing.publish import _threshold_warnings

FIELDS = ("nature", "event")


def test_each_field_has_its_own_files(joint: Sealed, sealed: Sealed) -> None:
    """Code list, labels, dense layer, golden answers, thresholds where there are such; the encoder is there once."""
    assert read_fields(joint.folder) == FIELDS
    assert read_fields(sealed.folder) == ()
    names = {path.relative_to(joint.folder).as_posix() for path in joint.folder.rglob("*") if path.is_file()}
    for field in FIELDS:
        own = {"labels.json", "codelist.csv", "golden.jsonl", "2_Dense/config.json", "2_Dense/model.safetensors"}
        assert {f"{field}/{file}" for file in own} <= names
    assert not {"codelist.csv", "golden.jsonl", "thresholds.json", "2_Dense/model.safetensors"} & names
    assert sum(name.endswith("0_Transformer/model.safetensors") for name in names) == 1
    assert names - {"ledger_proof.json", "model.sig"} <= allowed_content(FIELDS) < allowed_files(FIELDS)


def test_a_bundle_of_one_field_is_as_it_was(sealed: Sealed) -> None:
    """No field's name in any of its files: partners' programs read it as before."""
    names = {path.relative_to(sealed.folder).as_posix() for path in sealed.folder.rglob("*") if path.is_file()}
    assert names <= allowed_files(())
    assert not any(file_kind(name) is None for name in names)
    assert set(json.loads((sealed.folder / "labels.json").read_text())) == {"codes"}
    assert "fields" not in json.loads((sealed.folder / "privacy_statement.json").read_text())
    assert "field" not in json.loads((sealed.folder / "thresholds.json").read_text())
    assert [module["path"] for module in json.loads((sealed.folder / "modules.json").read_text())] == [
        "0_Transformer",
        "1_Pooling",
        "2_Dense",
    ]


def test_a_partner_finds_it_sound(joint: Sealed, tmp_path: Path) -> None:
    """Signed, with all digests and fields, as a folder and through an archive; the model gives the golden answers."""
    sound = check(joint.folder, joint.trust)
    with open_folder(pack(joint.folder, tmp_path / f"{joint.folder.name}.tar.zst")) as folder:
        assert check(folder, joint.trust).digest == sound.digest
    for field, own in export.load(joint.folder).fields.items():
        golden.check(own, sound.contents[f"{field}/golden.jsonl"])


def test_it_loads_field_by_field_in_plain_sentence_transformers(joint: Sealed) -> None:
    """As the card says, with nothing of ours: the same codes and scores."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    card = (joint.folder / "README.md").read_text()
    assert 'Dense.load(folder, subfolder=f"{field}/2_Dense")' in card
    texts = ["The employee fell from a ladder and broke his arm.", "A saw cut two fingers."]
    released = export.load(joint.folder)
    encoder = SentenceTransformer(str(joint.folder), model_kwargs={"dtype": "float32"}, device="cpu")
    together = released.logits(texts)
    for field, own in released.fields.items():
        model = SentenceTransformer(
            modules=[*encoder, Dense.load(str(joint.folder), subfolder=f"{field}/2_Dense")], device="cpu"
        ).float()
        plain = model.encode(texts, convert_to_tensor=True)
        assert tuple(json.loads((joint.folder / field / "labels.json").read_text())["codes"]) == own.codes
        assert torch.allclose(plain, own.logits(texts), atol=1e-4)
        assert torch.allclose(plain, together[:, released.spans[field]], atol=1e-4)


def test_statement_page_and_card_name_the_fields(joint: Sealed) -> None:
    """And one epsilon for all of them."""
    statement = json.loads((joint.folder / "privacy_statement.json").read_text())
    assert statement["fields"] == list(FIELDS)
    assert any("one epsilon for all of them" in one["text"] for one in statement["sentences"])
    assert "| fields | nature, event: one ε for all of them together |" in (joint.folder / "PRIVACY.md").read_text()
    card = (joint.folder / "README.md").read_text()
    assert "Codes free text in 2 fields at once" in card
    assert "### event" in card
    assert "texts made of the titles" in card, "golden answers are of no narrative"


def test_thresholds_are_of_the_field_that_the_generated_narratives_are_coded_in(joint: Sealed) -> None:
    """The list of events may have the numbers of natures: titles tell them apart. Whoever releases is told."""
    known = thresholds.read_thresholds(joint.folder / "nature" / "thresholds.json")
    assert known["field"] == "nature"
    assert not (joint.folder / "event" / "thresholds.json").exists()
    assert any(line.startswith("event: the bundle has no thresholds") for line in _threshold_warnings(joint.folder))


def test_codes_of_other_fields_are_refused(joint: Sealed, tmp_path: Path) -> None:
    """A joint head is never written as one field's, nor with codes of another number."""
    made = joint.candidate.build_untrained(joint.context)
    for codes in (["a"], {"nature": ["a"], "event": ["b"]}):
        with pytest.raises(MechanismError, match="not those of the fields"):
            export.save(made, tmp_path / "bundle", codes=codes)
    assert not (tmp_path / "bundle").exists()
