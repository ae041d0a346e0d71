"""Tells the light installation, of partners, from the one that trains (the extra `train`)."""

from __future__ import annotations

from importlib.util import find_spec

EXTRA = "pip install '.[train]'"
TRAINING = frozenset(
    {
        "absl",
        "datasets",
        "distributed",
        "docket",
        "dp_accounting",
        "matplotlib",
        "onnx",
        "opacus",
        "pandas",
        "peft",
        "prefect",
    }
    | {"prometheus_client", "sentence_transformers"}
)
"""Modules that the extra brings: one for each of its packages; absl and docket come with them."""


def is_light() -> bool:
    """Returns whether this is the light installation: without Prefect nothing trains."""
    return find_spec("prefect") is None


def missing() -> list[str]:
    """Returns the modules of the extra that are not installed."""
    return sorted(name for name in TRAINING if find_spec(name) is None)


def refusal(modules: list[str]) -> str:
    """Returns the message for anyone who needs modules that are missing."""
    return f"not installed: {', '.join(modules)}. This needs the extra `train`: {EXTRA}"


def refusal_of(error: Exception) -> str | None:
    """Returns the message if an import failed that the extra makes succeed."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return refusal([name]) if name in TRAINING else None
