"""Writes the bill of materials of a released model in CycloneDX 1.6.

Built manually, since the format's Python library lacks model cards. Tests check it against that library's schema.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from storage.artifacts import file_digest

_NAMESPACE = uuid.UUID("6f3d9f0e-54f7-4d7b-9f0a-2d0f5a6b8c11")
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "sentence-transformers")


def bill_of_materials(
    folder: Path,
    statement: Mapping[str, Any],
    *,
    encoder: str,
    training: str,
    family: str,
    architecture: str,
    licence: str,
) -> dict[str, Any]:
    """Returns the bill of a bundle's folder. The same release gives the same bytes.

    Args:
        folder: the bundle, its model and tokenizer written.
        statement: its privacy statement.
        encoder: name of the public encoder.
        training: what was done to it, in words.
        family: the architecture's family, such as `bert`.
        architecture: class of the network.
        licence: SPDX id.
    """
    release = str(statement["release_id"])
    files = sorted(
        p for p in folder.rglob("*") if p.suffix == ".safetensors" or p.name.startswith(("tokenizer", "lexicon"))
    )
    model = f"model:{release}"
    base = f"encoder:{encoder}"
    components: list[dict[str, Any]] = [
        {
            "type": "machine-learning-model",
            "bom-ref": base,
            "name": encoder,
            "description": f"Public encoder, {training}; its tokenizer is released as it is.",
        },
        {
            "type": "data",
            "bom-ref": "records",
            "name": f"confidential records of {statement['population']}",
            "description": "Texts with codes. Not part of the bundle.",
        },
    ]
    components += [
        {
            "type": "file",
            "bom-ref": f"file:{path.relative_to(folder).as_posix()}",
            "name": path.relative_to(folder).as_posix(),
            "hashes": [{"alg": "SHA-256", "content": file_digest(path)}],
        }
        for path in files
    ]
    libraries = [(name, _version(name)) for name in _LIBRARIES]
    components += [
        {
            "type": "library",
            "bom-ref": f"pypi:{name}",
            "name": name,
            "version": number,
            "purl": f"pkg:pypi/{name}@{number}",
        }
        for name, number in libraries
        if number
    ]
    parts = [entry["bom-ref"] for entry in components]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, release)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "machine-learning-model",
                "bom-ref": model,
                "name": "autocoder",
                "version": release,
                "licenses": [{"license": {"id": licence}}],
                "properties": [
                    {"name": f"autocoder:{name}", "value": str(statement[name])}
                    for name in ("mechanism", "guarantee_kind", "epsilon", "delta", "privacy_unit", "code_commit")
                    if statement[name] is not None
                ],
                "modelCard": {
                    "modelParameters": {
                        "task": "text-classification",
                        "architectureFamily": family,
                        "modelArchitecture": architecture,
                        "inputs": [{"format": "text"}],
                        "outputs": [{"format": "code with score"}],
                    },
                    "considerations": {
                        "useCases": ["coding free text for statistics"],
                        "technicalLimitations": list(statement["does_not_mean"]),
                    },
                },
            }
        },
        "components": components,
        "dependencies": [{"ref": model, "dependsOn": parts}],
    }


def _version(package: str) -> str | None:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None
