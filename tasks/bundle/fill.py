"""What is put into a bundle, and the gate that it has to pass before it may lie among the bundles."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mechanisms.model import encoders, export
from mechanisms.model.classifier import ModelConfig
from storage.artifacts import ArtifactRef, digest
from storage.bundle import folder as bundle
from storage.codelist import Code
from storage.datasets import load_spaces, load_split, split_file
from storage.egress import gate, leaks
from storage.egress.allowed import encoder_place
from storage.egress.published import public_titles
from storage.egress.sequences import SHORTEST, SequenceFilter, letters, load_key
from storage.ledger import Row
from storage.ledger.siblings import Sibling
from storage.tables.formulas import quoted
from tasks.bundle import golden, licence
from tasks.bundle import thresholds as calibration
from tasks.bundle.materials import bill_of_materials
from tasks.bundle.statement import DOES_NOT_MEAN, statement, statement_page
from tasks.fitting.candidate import Candidate
from tasks.pages.render import TEMPLATES, render
from tasks.parameters import BundleParameters
from tasks.running.stage import Context

Spaces = Mapping[str, Sequence[Code]]
"""The label space of each field by its name; of a single field by the name ""."""


def fill(
    folder: Path,
    context: Context,
    row: Row,
    candidate: Candidate,
    theta: Tensor,
    settings: BundleParameters,
    siblings: Sequence[Sibling] = (),
) -> None:
    """Write the content of a drawn release's bundle into an empty folder, and pass it through the gate.

    The same row, parameters and settings give the same bytes on the same machine.

    Raises:
        UnsoundBundle: something in it may not leave; names the file.
    """
    spaces = load_spaces(context.store.open(candidate.dataset))
    fields = tuple(name for name in spaces if name)
    facts = context.store.figures(candidate.dataset)
    classification, version = facts.get("classification", ""), facts.get("classification_version", "")
    tensors = export.save(
        candidate.classifier(context, theta), folder, codes=_names(spaces), precision=settings.precision
    )
    claimed = statement(row, siblings, fields=fields)
    bundle.write_json(folder / bundle.STATEMENT, claimed)
    (folder / bundle.PAGE).write_text(statement_page(claimed), encoding="utf-8")
    thresholds: dict[str, dict[str, Any] | None] = {}
    for name, released in export.load(folder).fields.items():
        codes, place = spaces[name], folder / name
        _write_codes(place / bundle.CODELIST, codes, classification, version)
        golden.write(released, codes, place / bundle.GOLDEN)
        titles = {entry.code: entry.title for entry in codes} if name else None
        thresholds[name] = calibration.thresholds_on_generated(
            released, classification=classification, field=name, titles=titles
        )
        if thresholds[name] is not None:
            bundle.write_json(place / bundle.THRESHOLDS, thresholds[name] or {})
    text, licence_id = licence_of(context, settings)
    (folder / bundle.LICENCE).write_text(text, encoding="utf-8")
    text = render(
        "card.md",
        statement=claimed,
        encoder=_encoder_name(candidate.model),
        mean_pooled=candidate.model.pooling == "mean",
        example=golden.texts(next(iter(spaces.values())))[0],
        labels={name: len(codes) for name, codes in spaces.items()},
        classification=f"{classification} {version}".strip(),
        precision=settings.precision,
        encoded_in=candidate.model.precision,
        licence=licence_id,
        thresholds=thresholds,
    )
    (folder / bundle.CARD).write_text(text, encoding="utf-8")
    network = folder / encoder_place(tensors) / "config.json"
    config = json.loads(network.read_text(encoding="utf-8"))
    bill = bill_of_materials(
        folder,
        claimed,
        encoder=_encoder_name(candidate.model),
        family=config["model_type"],
        architecture=(config.get("architectures") or ["unknown"])[0],
        licence=licence_id,
    )
    bundle.write_json(folder / bundle.MATERIALS, bill)
    gate.inspect(folder, _expected(context, candidate, spaces, tensors, claimed, licence_id))


def _encoder_name(model: ModelConfig) -> str:
    """The encoder's name without the folder it lies in."""
    return "all-MiniLM-L6-v2" if model.encoder == encoders.PACKAGED else model.encoder.rstrip("/").rpartition("/")[2]


def rehearse(
    context: Context,
    row: Row,
    candidate: Candidate,
    settings: BundleParameters,
    siblings: Sequence[Sibling] = (),
) -> None:
    """Refuse before the budget is charged whatever the gate would refuse afterwards.

    The whole bundle is written as it would be released, but with the parameters that training began with: every word
    in it is there before the draw, which adds numbers alone.

    Args:
        row: as it would be drawn.

    Raises:
        MechanismError, StorageError: say what cannot leave.
    """
    folder = context.workspace.private / "rehearsal" / candidate.fitted.sha256[:32]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        fill(folder, context, row, candidate, candidate.untrained(context).flat.clone(), settings, siblings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _names(spaces: Spaces) -> export.Codes:
    """The codes alone, in the order of the scores."""
    named = {name: [entry.code for entry in codes] for name, codes in spaces.items()}
    return named.get("", named)


def _expected(
    context: Context,
    candidate: Candidate,
    spaces: Spaces,
    tensors: dict[str, export.Shapes],
    claimed: dict[str, Any],
    licence_id: str | None = licence.OURS,
) -> gate.Expected:
    encoder = Path(encoders.resolve(candidate.model.encoder))
    places = (context.workspace.home, *((encoder,) if encoder.is_dir() else ()))
    return gate.Expected(
        codes={name: tuple(codes) for name, codes in spaces.items()},
        tokenizer=gate.tokenizer_digest(export.tokenizer_of(candidate.model.encoder)),
        tensors=tensors,
        golden_texts={name: golden.texts(codes) for name, codes in spaces.items()},
        statement=claimed,
        identities=tuple(
            name for name in leaks.identities(*places) if name.casefold() not in own_words(spaces, claimed)
        ),
        narratives=narratives_of(context, candidate.dataset, spaces, licence_id),
        licence_is_public=licence_id is not None,
    )


def own_words(spaces: Spaces, claimed: dict[str, Any]) -> frozenset[str]:
    """Words that every such bundle has, whoever made it: an account of that name is not told by them."""
    pages = (template.read_text(encoding="utf-8") for template in sorted(TEMPLATES.glob("*.md.j2")))
    said = (claimed.get(name, "") for name in ("trust_model", "randomness_source", "floating_point_caveat"))
    lists = (line for name in ("assumptions", "unprotected_inputs") for line in claimed.get(name, ()))
    meant = (line for lines in DOES_NOT_MEAN.values() for line in lines)
    sentences = (said["text"] for said in claimed.get("sentences", ()))
    titles = (entry.title for codes in spaces.values() for entry in codes)
    tried = (text for codes in spaces.values() for text in golden.texts(codes))
    texts = (
        *pages,
        *said,
        *lists,
        *meant,
        *sentences,
        *titles,
        *tried,
        licence.text_of(Path(), licence.OURS),
    )
    return frozenset(re.findall(r"[^\W\d_]+", " ".join(texts).casefold()))


def narratives_of(context: Context, dataset: ArtifactRef, spaces: Spaces, licence_id: str | None) -> SequenceFilter:
    """The filter of this data set, kept in the private workspace; made anew when what is public changes.

    Public are the titles of published lists and what every bundle says, whoever made it: a record of one or two words,
    such as the job title `contributor`, stands in a licence too.
    """
    published = tuple(title for codes in spaces.values() for title in public_titles(codes))
    own = [] if licence_id is None else [licence.text_of(Path(), licence_id)]
    own += [template.read_text(encoding="utf-8") for template in sorted(TEMPLATES.glob("*.md.j2"))]
    public = [
        *golden.public(published),
        *published,
        *rows_of(spaces, context.store.figures(dataset)),
        *own,
        *(line for meant in DOES_NOT_MEAN.values() for line in meant),
    ]
    folder = context.workspace.private / "egress"
    key = load_key(folder / "key")
    file = folder / f"{digest({'form': 2, 'dataset': dataset.sha256, 'public': public})[:32]}.sequences"
    if not file.is_file():
        folder_of = context.store.open(dataset)
        splits = [split for split in ("train", "test", "holdout") if split_file(folder_of, split).is_file()]
        records = [load_split(folder_of, split) for split in splits]
        texts = (text for split in records for text in split["text"])
        units = (unit for split in records for unit in split["unit"])
        SequenceFilter.of(texts, key=key, units=units, public=public).save(file)
    return SequenceFilter.load(file, key=key)


def rows_of(spaces: Spaces, facts: Mapping[str, Any]) -> list[str]:
    """The rows of published lists as the bundle has them: `window cleaner` beside `SOC` is no `window cleaners`. A name
    of the classification so long that it could be a record itself may not stand there unread."""
    named = [facts.get("classification", ""), facts.get("classification_version", "")]
    if len(letters("".join(named))) >= SHORTEST:
        return []
    lists = [codes for codes in spaces.values() if public_titles(codes)]
    return [" ".join((entry.code, entry.title, *named)) for codes in lists for entry in codes]


def _write_codes(path: Path, codes: Sequence[Code], classification: str, version: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["code", "title", "classification", "version"])
        for entry in codes:
            writer.writerow(map(quoted, (entry.code, entry.title, classification, version)))


def licence_of(context: Context, settings: BundleParameters) -> tuple[str, str | None]:
    """Text of the licence and its SPDX id, None for one that the operator gave.

    Raises:
        InputError: it cannot be read.
    """
    private = context.workspace.private
    name = licence.chosen(private, settings.licence)
    return licence.text_of(private, name), name if name in licence.SPDX else None
