"""The bundle's README: a model card that a partner agency reads first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanisms.model.classifier import ModelConfig
from mechanisms.model.encoders import PACKAGED
from tasks.bundle.statement import shown_amount

EXAMPLE = "Employee fell from a ladder and fractured his wrist."


def encoder_name(model: ModelConfig) -> str:
    """The encoder's name without the folder it lies in."""
    return "all-MiniLM-L6-v2" if model.encoder == PACKAGED else model.encoder.rstrip("/").rpartition("/")[2]


def model_card(
    statement: Mapping[str, Any],
    model: ModelConfig,
    *,
    labels: int,
    classification: str,
    precision: str,
    licence: str | None,
    thresholds: Mapping[str, Any] | None,
) -> str:
    """Markdown with Hugging Face metadata; everything in it comes from statement, configuration or generated texts.

    Args:
        statement: the privacy statement.
        model: encoder and pooling.
        labels: how many codes.
        classification: name and version, for people; empty where none is known.
        precision: of the weights on the disk.
        licence: SPDX id; None for another licence.
        thresholds: content of `thresholds.json`, if any.
    """
    mean = model.pooling == "mean"
    bullets = {
        name: "\n".join(f"- {line}" for line in statement[name])
        for name in ("assumptions", "unprotected_inputs", "does_not_mean")
    }
    draws = statement["draws"]
    how = "a bound on every record, by construction" if draws is None else f"over {draws} draws and the released one"
    made = _DRAWN if statement["guarantee_kind"] == "asymptotic-local" else _NOISY
    return _CARD.format(
        encoder=encoder_name(model),
        loading=(_SENTENCE_TRANSFORMERS if mean else _TRANSFORMERS).format(example=EXAMPLE),
        library="sentence-transformers" if mean else "transformers",
        licence=licence.lower() if licence else "other",
        labels=labels,
        of=f" of {classification}" if classification else "",
        half=_HALF if precision == "bfloat16" else "",
        statement=statement,
        cohorts=", ".join(statement["cohorts"]),
        tag="swag-ppm" if made is _DRAWN else statement["mechanism"],
        made=made,
        epsilon=shown_amount(statement["epsilon"]),
        delta=statement["delta_text"] or statement["delta"],
        sensitivity=""
        if statement["sensitivity"] is None
        else _SENSITIVITY.format(how=how, sensitivity=shown_amount(statement["sensitivity"])),
        believing=_believing(thresholds),
        **bullets,
    )


def _believing(thresholds: Mapping[str, Any] | None) -> str:
    if thresholds is None:
        return _NO_THRESHOLDS
    reached = any(entry["threshold"] is not None for entry in thresholds["thresholds"])
    return _BELIEVING if reached else f"{_BELIEVING}Even there no score reached a target: have every answer checked.\n"


_TRANSFORMERS = """from transformers import pipeline

code = pipeline("text-classification", "path/to/this/folder", dtype="float32", top_k=3)
code("{example}", truncation=True)  # long texts are cut, as in training"""

_SENTENCE_TRANSFORMERS = """import json
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder", model_kwargs={{"dtype": "float32"}}).float()
codes = json.load(open("path/to/this/folder/config.json"))["id2label"]
narrative = "{example}"
scores = model.encode([narrative], convert_to_tensor=True)
codes[str(int(scores.argmax()))]"""

_DRAWN = "the parameters are **one random draw** from a SWAG pseudo posterior (SWAG-PPM)"
_NOISY = "the parameters are those of **one fit with noise** (differential privacy by gradient perturbation)"
_SENSITIVITY = "| sensitivity Δ | {sensitivity} ({how}) |\n"
_HALF = "The weights are rounded to bfloat16; compute in float32, as above, to get the golden answers.\n"
_BELIEVING = """`thresholds.json` holds a temperature for the scores, and for some target rates of right answers the
score from which answers reached it. **They were fitted on generated narratives**, which are cleaner than yours: code a
few hundred of your own records by hand and fit your own (`autocoder calibrate`) before you let answers through unseen.
"""
_NO_THRESHOLDS = """No thresholds come with this model. Code a few hundred of your own records by hand and fit your own
(`autocoder calibrate`) before you let answers through unseen.
"""

_CARD = """---
library_name: {library}
pipeline_tag: text-classification
license: {licence}
base_model: {encoder}
tags: [injury-coding, {tag}, differential-privacy]
---

# Injury autocoder, release {statement[release_id]}

Codes free-text injury narratives into {labels} codes{of} (listed in `codelist.csv`). Fine-tuned from {encoder};
{made}, made so that the model could be handed over.

```python
{loading}
```

{half}
## Check it first

```
autocoder verify path/to/this/folder --key signing-key.pub.pem
```

It checks the signature over every file (`model.sig`, OpenSSF model signing), the place of this release in the agency's
ledger (`ledger_proof.json`), and that the model gives the answers of `golden.jsonl`, narratives that a program made up.
Get the key, or its id, another way than this folder. Without this program, `model_signing verify key` checks the
signature.

## What is claimed

| | |
|---|---|
| guarantee kind | `{statement[guarantee_kind]}` |
| ε | {epsilon} |
| δ | {delta} |
{sensitivity}| neighbours | {statement[neighbouring_relation]}, unit: {statement[privacy_unit]} |
| accountant | {statement[accountant]} |

`PRIVACY.md` says what this means in plain words, `privacy_statement.json` the same for machines.

### It rests on

{assumptions}

### What reached the model without protection

{unprotected_inputs}

### What it does not mean

{does_not_mean}

## When to believe an answer

{believing}
Trained on records of {statement[population]}, periods {cohorts}. Rare codes are rarely right, and a narrative that is
no injury gets a code all the same. Have a person check answers of low score, and do not use the answers to decide about
a person.

## What is in this folder

| file | what |
|---|---|
| `config.json`, `*.safetensors`, `tokenizer*.json` | the model; its tokenizer is the encoder's own |
| `codelist.csv` | code, title, classification and version |
| `privacy_statement.json`, `PRIVACY.md` | the promise and its limits |
| `ledger_proof.json`, `model.sig` | row of the ledger, signature |
| `thresholds.json` | when to believe a score, where there is one |
| `golden.jsonl` | generated narratives and the expected answers |
| `bom.cdx.json`, `LICENSE` | bill of materials (CycloneDX 1.6), licence |
"""
