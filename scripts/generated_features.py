"""Computes the packaged encoder's features of the generated narratives, which ship with the
program.

    .venv/bin/python scripts/generated_features.py

Run it after a change to the generator (`storage/demo_data.py`) or to the packaged encoder. Neither
reads any records.
"""

from __future__ import annotations

from mechanisms.model import checkpoint, encoder_files, encoders
from mechanisms.model.classifier import MeanPooled
from mechanisms.model.export import Released
from tasks.bundle import public_features
from tasks.bundle.thresholds import generated_narratives


def packaged() -> Released:
    """Returns the packaged encoder with a head that is not used."""
    name = encoder_files.PACKAGED
    encoder, tokenizer = encoders.load_encoder(name), encoder_files.load_tokenizer(name)
    model = MeanPooled(encoder, encoders.width(encoder), 1).eval()
    return Released(
        model=model, tokenizer=tokenizer, codes=("",), max_length=encoder_files.longest(name)
    )


def main() -> None:
    released, texts = packaged(), generated_narratives()
    tokens = encoders.token_inputs(released.tokenizer, texts, max_length=released.max_length)
    described = {
        "public": public_features.key_of_packaged(texts, public_features.encoder_digest(released)),
        "tokens": int(tokens.lengths.max()),
    }
    checkpoint.save(
        public_features.PACKAGED, {"features": public_features.compute(released, texts)}, described
    )


if __name__ == "__main__":
    main()
