"""Tells the light installation, of partners, from the one that trains (the extra `train`)."""

from importlib.util import find_spec

from storage.extras import install_command

PARTNER = frozenset({"fastapi", "scipy", "starlette", "uvicorn"})
"""Modules that the extra `partner` brings, and `train` with it."""
TRAINING = frozenset(
    {
        "absl",
        "datasets",
        "distributed",
        "docket",
        "dp_accounting",
        "matplotlib",
        "mpmath",
        "onnx",
        "opacus",
        "pandas",
    }
    | {
        "peft",
        "prefect",
        "prometheus_client",
        "safetensors",
        "sentence_transformers",
        "sklearn",
        "snowballstemmer",
    }
    | {"sqlalchemy", "torch", "transformers"}
)
"""Modules that `train` brings: one for each of its packages; absl and docket come with them."""


def is_light() -> bool:
    return find_spec("prefect") is None


def missing() -> list[str]:
    return sorted(name for name in TRAINING if find_spec(name) is None)


def refusal(modules: list[str]) -> str:
    extra = "partner" if PARTNER.issuperset(modules) else "train"
    return (
        f"not installed: {', '.join(modules)}. This needs the extra `{extra}`: "
        f"{install_command(extra)}"
    )


def refusal_of(error: Exception) -> str | None:
    """Returns the message if an import failed that an extra makes succeed."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return refusal([name]) if name in TRAINING | PARTNER else None
