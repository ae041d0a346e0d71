"""Writes the content of a bundle and passes it through the gate."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.model import export, onnx_graph, packaged
from mechanisms.model.config import ModelConfig
from mechanisms.model.scorer import GRAPH, INT8, Graph
from mechanisms.privacy.accuracy_table import AccuracyTable
from mechanisms.privacy.events import ParallelEvent, decode
from mechanisms.thresholds_file import FITTED_ON, Thresholds
from storage.artifacts import file_digest
from storage.bundle import folder as bundle
from storage.bundle.stated import AccuracyFile, accuracy_lines, stated_accuracy
from storage.code_levels import groups
from storage.codelist import Code
from storage.datasets import load_codes
from storage.egress import gate
from storage.egress.allow_list import encoder_place
from storage.errors import Changed, Contradiction
from storage.ingest import IngestConfig
from storage.json_values import Json
from storage.ledger import ReleaseRow
from storage.tables.formulas import quote
from tasks.bundle import golden, licence, public_features
from tasks.bundle import thresholds as calibration
from tasks.bundle.accuracy import ToldAccuracy
from tasks.bundle.deployment import Deployment
from tasks.bundle.statement import statement, statement_page
from tasks.bundle.texts import name_of, own_texts
from tasks.bundle.untold import REASONS_FOR_PARTNERS
from tasks.fitting.candidate import Candidate
from tasks.fitting.ingest import ingest_figures
from tasks.pages.render import render
from tasks.parameters import BundleParameters
from tasks.running.stage import Context

CLIENTS = {
    "onnxruntime": "1.17 to 1.32",
    "onnxruntime-web": "1.30",
    "sentence-transformers": "3.4 to 6.2",
    "transformers": "5.23",
}
"""Versions of published libraries that can load a bundle, as tested by `make test-clients`."""
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "sentence-transformers")
_OF_EXAMPLE = 10_000
"""Number of records in the table of a rehearsal."""
_NAMESPACE = uuid.UUID("6f3d9f0e-54f7-4d7b-9f0a-2d0f5a6b8c11")


def fill(
    folder: Path,
    context: Context,
    row: ReleaseRow,
    candidate: Candidate,
    theta: Tensor | None,
    settings: BundleParameters,
    texts: Sequence[str] | None = None,
    deployment: Deployment | None = None,
    *,
    table: AccuracyTable | None = None,
    drawn_on: str = "",
) -> gate.Expected:
    """Writes the bundle of a drawn release to an empty folder and passes it through the gate.

    The same row, parameters and settings give the same bytes on the same machine. Returns what the
    gate expected.

    Args:
        theta: the parameters, or None for those before training.
        texts: unpublished texts that the signed plan lists; None for all that there are.
        deployment: source of the record for a registry and of the answers to NIST SP 800-226; None
            for a bundle without them.
        drawn_on: day of the draw, from the ledger's row; empty if nothing was drawn.
        table: the table that was drawn with the parameters if the row's event has one; None for an
            example.

    Raises:
        UnsoundBundle: a file must not be released; the message names it.
        StorageError: the row was reserved for other artifacts.
    """
    artifacts = candidate.artifact_digests
    if artifacts != row.plan.artifact_digests:
        raise Changed(
            f"release {row.release_id} was reserved for other artifacts than those of this plan. "
            "Release the reserved plan",
            kind="reserved-for-others",
        )
    codes = load_codes(context.store.open(candidate.dataset))
    facts = ingest_figures(context.store, candidate.dataset)
    classification = facts.get("classification", "")
    version = facts.get("classification_version", "")
    if theta is None:
        model = candidate.build_untrained(context)
    else:
        model = candidate.classifier(context, theta)
    told = _told(context, row, candidate, codes, table)
    stated_accuracy = None if told is None else told.stated
    accuracy = None if told is None else told.as_json()
    tensors = export.save(
        model, folder, codes=[entry.code for entry in codes], precision=settings.precision
    )
    if stated_accuracy is not None:
        export.divide_scores(folder, stated_accuracy.temperature, codes=len(codes))
    documents = _Documents(folder)
    if deployment is not None:
        _add_deployment(documents, deployment, accuracy)
    claimed = statement(
        row,
        sampling=facts["sampling"],
        train_before=_ingest(context, candidate).train_before,
        documents=tuple(documents.texts),
    )
    documents.add(bundle.STATEMENT, bundle.json_text(claimed))
    documents.add(bundle.PAGE, statement_page(claimed))
    released, score = export.load(folder), export.Released.logits
    if candidate.model.trainable == "head":
        encoder = public_features.encoder_digest(released)
        score = partial(public_features.logits, encoder=encoder)
    if accuracy is not None:
        documents.add(bundle.ACCURACY, bundle.json_text(accuracy))
        if accuracy["stated"]:
            documents.add(bundle.RELIABILITY, render("reliability.svg", accuracy=accuracy))
    documents.add(bundle.CODELIST, codes_text(codes, classification, version))
    if stated_accuracy is not None:
        thresholds: Thresholds | None = calibration.thresholds_of(stated_accuracy)
    else:
        thresholds = calibration.thresholds_on_generated(released, codes, score=score)
        if thresholds is not None:
            export.divide_scores(folder, thresholds["temperature"], codes=len(codes))
            thresholds["temperature"] = 1.0  # it is now part of the weights
            released = export.load(folder)
    if thresholds is not None:
        documents.add(bundle.THRESHOLDS, bundle.json_text(thresholds))
    documents.add(bundle.GOLDEN, golden.answers_text(released, codes, score=score))
    graphs = _write_graphs(folder, candidate.model, golden.texts(codes), int8=settings.int8)
    licence_id = licence.resolve(settings.licence)
    documents.add(bundle.LICENCE, licence.text_of(licence_id))
    encoder_name = packaged.PUBLISHED.get(candidate.model.encoder) or name_of(
        candidate.model.encoder
    )
    training = describe_training(candidate.model, precision=settings.precision)
    text = render(
        "card.md",
        statement=claimed,
        encoder=encoder_name,
        training=training,
        mean_pooled=candidate.model.pooling == "mean",
        lexical=candidate.model.lexical,
        language=candidate.model.lexical_language,
        language_code=_language_code(candidate.model),
        accuracy=accuracy,
        plot=bundle.RELIABILITY,
        untold=REASONS_FOR_PARTNERS.get(claimed.get("accuracy_untold", "")),
        example=golden.texts(codes)[0],
        labels=len(codes),
        classification=f"{classification} {version}".strip(),
        precision=settings.precision,
        encoded_in=candidate.model.precision,
        licence=licence_id,
        thresholds=thresholds,
        fitted_on=FITTED_ON,
        graphs=graphs,
        weights=sorted(tensors),
        clients=CLIENTS,
        sizes=_sizes(folder),
    )
    documents.add(bundle.CARD, text)
    network = folder / encoder_place(tensors) / "config.json"
    config = json.loads(network.read_text(encoding="utf-8"))
    bill = bill_of_materials(
        folder,
        claimed,
        encoder=encoder_name,
        training=training,
        family=config["model_type"],
        architecture=(config.get("architectures") or ["unknown"])[0],
        licence=licence_id,
        accuracy=accuracy,
        day=drawn_on,
    )
    documents.add(bundle.MATERIALS, bundle.json_text(bill))
    digests = {name: graph.sha256 for name, graph in graphs.items()}
    unpublished = own_texts(
        codes,
        facts,
        candidate.model.encoder,
        statement=claimed,
        label=row.plan.release_label,
        registry=None if deployment is None else deployment.stated,
    )
    signed = unpublished if texts is None else texts
    unsigned = tuple(text for text in unpublished if text not in signed)
    expected = _expected(
        context, candidate, codes, settings, unsigned, documents=documents.texts, graphs=digests
    )
    gate.inspect(folder, expected)
    return expected


def _add_deployment(
    documents: _Documents, deployment: Deployment, accuracy: AccuracyFile | None
) -> None:
    shown = {} if accuracy is None else {bundle.ACCURACY: accuracy}
    utility = accuracy_lines(stated_accuracy(shown))
    if deployment.stated is not None:
        documents.add(bundle.RECORD, bundle.json_text(deployment.registry_record(utility)))
    documents.add(bundle.ANSWERS, deployment.answers(utility))


_CODES = {"english": "en", "german": "de", "french": "fr", "spanish": "es", "italian": "it"}
_CODES |= {"portuguese": "pt", "dutch": "nl", "danish": "da", "swedish": "sv", "norwegian": "no"}
_CODES |= {"finnish": "fi", "romanian": "ro", "hungarian": "hu", "russian": "ru"}
"""ISO 639-1 codes of the languages that have stemmers."""


def _language_code(model: ModelConfig) -> str | None:
    language = model.stems_language or model.encoder_language
    return None if language is None else _CODES.get(language.lower())


def _told(
    context: Context,
    row: ReleaseRow,
    candidate: Candidate,
    codes: Sequence[Code],
    table: AccuracyTable | None,
) -> ToldAccuracy | None:
    event = decode(row.event)
    if not isinstance(event, ParallelEvent):
        return None
    if table is None:  # independent of the records, like the whole rehearsal
        table = AccuracyTable.example(_OF_EXAMPLE, len(groups(codes)[0]))
    return ToldAccuracy.of(table, event, codes, _ingest(context, candidate))


def _ingest(context: Context, candidate: Candidate) -> IngestConfig:
    recipe = context.store.recipe(candidate.dataset)
    return IngestConfig.model_validate(recipe["config"]["ingest"])


class _Documents:
    def __init__(self, folder: Path) -> None:
        self.texts: dict[str, str] = {}
        self._folder = folder

    def add(self, name: str, text: str) -> None:
        self.texts[name] = text
        (self._folder / name).write_bytes(text.encode())


@dataclass(frozen=True)
class _Graph:
    sha256: str
    codes: int
    """Number of texts with the same best code."""
    texts: int
    change: float
    """Largest change of a score."""


def _write_graphs(
    folder: Path, model: ModelConfig, texts: Sequence[str], *, int8: bool
) -> dict[str, _Graph]:
    """Writes `model.onnx` if the model has such a graph, and `model.int8.onnx` if requested.

    Raises:
        InputError: eight bits were requested for a model without a graph.
        UnsoundBundle: onnxruntime gives other codes than the model, or scores that differ by more
            than rounding.
    """
    if not onnx_graph.exists_for(model):
        if int8:
            raise Contradiction(
                "release.int8: this model has no graph for onnxruntime. Leave it out",
                kind="no-int8-graph",
            )
        return {}
    released, graphs = export.load(folder), {}
    exact = released.logits(texts).softmax(-1)
    for name in [GRAPH, INT8] if int8 else [GRAPH]:
        content = onnx_graph.graph(released, folder, int8=name == INT8)
        (folder / name).write_bytes(content)
        scores = torch.from_numpy(Graph.load(folder, int8=name == INT8).rounded(texts)).softmax(-1)
        same = int((scores.argmax(1) == exact.argmax(1)).sum())
        change = float((scores - exact).abs().max())
        if name == GRAPH and not (change <= golden.TOLERANCE and same == len(texts)):
            raise bundle.UnsoundBundle(
                GRAPH, "gives other scores than the model", kind="graph-differs"
            )
        graphs[name] = _Graph(hashlib.sha256(content).hexdigest(), same, len(texts), change)
    return graphs


def _sizes(folder: Path) -> dict[str, float]:
    sizes: dict[str, float] = defaultdict(float)
    for file in folder.rglob("*"):
        if file.is_file():
            sizes[file.relative_to(folder).parts[0]] += file.stat().st_size / 1e6
    return {name: size for name, size in sorted(sizes.items()) if size >= 0.1}


def bill_of_materials(
    folder: Path, statement: Mapping[str, object], **described: Any
) -> dict[str, Json]:
    """Returns a bundle's bill of materials in CycloneDX 1.7, which tests check against the schema.
    It is the same for the same release.

    Args:
        described: values for the template: encoder, training, family, architecture, licence,
            accuracy, day.
    """
    files = sorted(
        p
        for p in folder.rglob("*")
        if p.suffix == ".safetensors" or p.name.startswith(("tokenizer", "lexicon"))
    )
    found = {name: _version(name) for name in _LIBRARIES}
    libraries = {name: number for name, number in found.items() if number is not None}
    text = render(
        "materials.json",
        statement=statement,
        files={path.relative_to(folder).as_posix(): file_digest(path) for path in files},
        libraries=libraries,
        tool=_version("autocoder"),
        serial=uuid.uuid5(_NAMESPACE, str(statement["release_id"])),
        **described,
    )
    bill = json.loads(text)
    parts = [component["bom-ref"] for component in bill["components"]]
    return bill | {
        "dependencies": [{"ref": bill["metadata"]["component"]["bom-ref"], "dependsOn": parts}]
    }


def _version(package: str) -> str | None:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


def describe_training(model: ModelConfig, *, precision: str) -> str:
    """Describes how training changed the public encoder in a bundle."""
    if model.trainable == "full":
        return "fine-tuned on the records"
    if model.trainable == "lora":
        return "with low-rank adapters trained on the records and merged into it"
    return "as it was published, " + (
        "bit for bit" if precision == "float32" else f"rounded to {precision}"
    )


def rehearse(
    context: Context,
    row: ReleaseRow,
    candidate: Candidate,
    settings: BundleParameters,
    texts: Sequence[str] | None = None,
    deployment: Deployment | None = None,
) -> None:
    """Refuses, before the budget is charged, everything that the gate would refuse afterwards.

    The whole bundle is written as it would be released, but with the parameters from before
    training. Its text is complete before the draw, which only adds numbers.
    """
    folder = context.store.private / "rehearsal" / candidate.fitted.sha256[:32]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        fill(folder, context, row, candidate, None, settings, texts, deployment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _expected(
    context: Context,
    candidate: Candidate,
    codes: Sequence[Code],
    settings: BundleParameters,
    unsigned: tuple[str, ...],
    *,
    documents: Mapping[str, str],
    graphs: Mapping[str, str],
) -> gate.Expected:
    files = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in documents.items()}
    files |= graphs
    untrained = context.store.private / "untrained" / candidate.fitted.sha256[:32]
    shutil.rmtree(untrained, ignore_errors=True)
    try:
        model = candidate.build_untrained(context)
        trained = export.save(
            model, untrained, codes=[entry.code for entry in codes], precision=settings.precision
        )
        if candidate.model.trainable == "head" and candidate.model.pooling == "mean":
            trained.pop(
                f"{encoder_place(trained)}model.safetensors"
            )  # of the encoder, which is unchanged
        written = (path for path in untrained.rglob("*") if path.is_file())
        places = {path.relative_to(untrained).as_posix(): path for path in written}
        files |= {name: file_digest(path) for name, path in places.items() if name not in trained}
    finally:
        shutil.rmtree(untrained, ignore_errors=True)
    return gate.Expected(files, trained, unsigned)


def codes_text(codes: Sequence[Code], classification: str, version: str) -> str:
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["code", "title", "classification", "version"])
    for entry in codes:
        writer.writerow(map(quote, (entry.code, entry.title, classification, version)))
    return output.getvalue()
