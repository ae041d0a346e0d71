"""The bundle's README: a model card that a partner agency reads first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanisms.classifier import ModelConfig
from mechanisms.encoders import PACKAGED


def model_card(statement: Mapping[str, Any], model: ModelConfig, *, labels: int) -> str:
    """Markdown with Hugging Face metadata; everything in it comes from the privacy statement or the configuration."""
    encoder = "all-MiniLM-L6-v2" if model.encoder == PACKAGED else model.encoder.rstrip("/").rpartition("/")[2]
    loading = _SENTENCE_TRANSFORMERS if model.pooling == "mean" else _TRANSFORMERS
    library = "sentence-transformers" if model.pooling == "mean" else "transformers"
    bullets = {
        name: "\n".join(f"- {line}" for line in statement[name])
        for name in ("assumptions", "unprotected_inputs", "does_not_mean")
    }
    return _CARD.format(
        encoder=encoder, loading=loading, library=library, labels=labels, statement=statement, **bullets
    )


_TRANSFORMERS = """from transformers import pipeline

code = pipeline("text-classification", "path/to/this/folder", top_k=3)
code("Employee fell from a ladder and fractured his wrist.", truncation=True)  # long texts are cut, as in training"""

_SENTENCE_TRANSFORMERS = """import json
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
codes = json.load(open("path/to/this/folder/config.json"))["id2label"]
scores = model.encode(["Employee fell from a ladder and fractured his wrist."], convert_to_tensor=True)
codes[str(int(scores.argmax()))]"""

_CARD = """---
library_name: {library}
pipeline_tag: text-classification
tags: [injury-coding, swag-ppm, differential-privacy]
---

# Injury autocoder, release {statement[release_id]}

Codes free-text injury narratives into {labels} codes (listed in `codelist.csv`). Fine-tuned from {encoder}; the
parameters are **one random draw** from a SWAG pseudo posterior (SWAG-PPM), made so that the model could be handed over.

```python
{loading}
```

## What is claimed

| | |
|---|---|
| guarantee kind | `{statement[guarantee_kind]}` |
| epsilon | {statement[epsilon]} |
| delta | {statement[delta_text]} |
| sensitivity Delta | {statement[sensitivity]} over {statement[draws]} draws and the released one |
| neighbours | {statement[neighbouring_relation]}, unit: {statement[privacy_unit]} |
| accountant | {statement[accountant]} |

Assumptions:

{assumptions}

Reached the model without protection:

{unprotected_inputs}

## What it does not mean

{does_not_mean}

`privacy_statement.json` holds the same for machines.

## Limits

Trained on records of {statement[population]}, periods {statement[cohorts]}. Rare codes are rarely right. Have a person
check answers of low score, and do not use the answers to decide about a person.
"""
