"""Computes the packaged encoder's vectors of single words, which ship with the program.

    .venv/bin/python scripts/word_vectors.py

Run it after a change to the packaged encoder, and put the printed digest into
`mechanisms/model/title_words.py`. No record is read.
"""

from __future__ import annotations

import hashlib

import torch

from mechanisms.model import checkpoint, encoder_files, packaged, prior, title_words, word_vectors
from mechanisms.model.config import ModelConfig


def main() -> None:
    config = ModelConfig(encoder=packaged.MINILM, trainable="head", pooling="mean")
    of_titles = (
        word for title in title_words.injury_titles() for word in title_words.words_of(title)
    )
    words = sorted({*encoder_files.whole_words(packaged.MINILM), *of_titles})
    vectors = word_vectors.in_units(prior.embed(config, words, device=torch.device("cpu")))
    checkpoint.save(title_words.VECTORS, {"vectors": vectors}, {"words": words})
    print(hashlib.sha256(title_words.VECTORS.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
