"""The bundle's README: a model card that a partner agency reads first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanisms.model.classifier import ModelConfig
from mechanisms.model.encoders import PACKAGED
from tasks.pages.render import render

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
    return render(
        "card.md",
        statement=statement,
        encoder=encoder_name(model),
        mean_pooled=model.pooling == "mean",
        example=EXAMPLE,
        labels=labels,
        classification=classification,
        precision=precision,
        licence=licence,
        thresholds=thresholds,
    )
