"""Compares encoders on your own records: size, processor seconds, and F1 of a head under
differential privacy.

    python benchmarks/encoders.py neiss.csv --text Narrative --label Body_Part \\
        packaged-minilm packaged-mpnet

Half of the records are scored, drawn anew for every seed. The labels are assumed to be public
names, which serve as titles. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import csv
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import f1_score

from autocoder import PrivateClassifier
from mechanisms.model import encoder_files, lexicon, packaged, prior, word_vectors
from mechanisms.model.config import ModelConfig


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="CSV of records")
    parser.add_argument("encoders", nargs="+", help="names or folders, as for model.encoder")
    parser.add_argument("--text", required=True, help="column of the texts")
    parser.add_argument("--label", required=True, help="column of the labels")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with options.data.open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row[options.text].strip() and row[options.label].strip()
        ]
    texts, labels = (
        [row[options.text] for row in rows],
        np.array([row[options.label] for row in rows]),
    )
    names = np.unique(labels).tolist()
    print(
        "| encoder | parameters | seconds per thousand | "
        + " | ".join(f"ε {e:g}" for e in options.epsilon)
        + " |"
    )
    print("|---|---|---|" + "---|" * len(options.epsilon))
    for encoder in options.encoders:
        features, titles, seconds = _features(encoder, texts, names)
        cells = [
            _scores(
                features,
                titles,
                labels,
                names,
                epsilon=epsilon,
                delta=options.delta,
                seeds=options.seeds,
            )
            for epsilon in options.epsilon
        ]
        millions = encoder_files.shape(encoder)[0] / 1e6
        print(
            (
                f"| {encoder} | {millions:.0f} million | {1000 * seconds / len(texts):.1f} | "
                f"{' | '.join(cells)} |"
            ),
            flush=True,
        )


def _features(
    encoder: str, texts: list[str], names: list[str]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns features of texts and names, including word features from the names, and processor
    seconds for the texts.
    """
    of_words = packaged.for_words(encoder)

    def embed(public: list[str], by: str = of_words) -> torch.Tensor:
        return prior.embed(
            ModelConfig(encoder=by, trainable="head", pooling="mean"), public, device="cpu"
        )

    titles = embed(names, encoder)
    words = lexicon.of_titles(
        names,
        lambda further: word_vectors.of(of_words, further, embed),
        texts=names,
        features=titles,
        unit=lexicon.unit_of(encoder, partial(embed, by=encoder)),
    )
    start = time.process_time()
    features = embed(texts, encoder)
    seconds = time.process_time() - start
    both = (words.join(part, words.words(of)) for part, of in ((features, texts), (titles, names)))
    of_texts, of_names = (part.numpy() for part in both)
    return of_texts, of_names, seconds


def _scores(
    features: np.ndarray,
    titles: np.ndarray,
    labels: np.ndarray,
    names: list[str],
    *,
    epsilon: float,
    delta: float,
    seeds: int,
) -> str:
    """Returns weighted and macro F1 (over the scored labels) with their spread over seeds."""
    scores = []
    for seed in range(seeds):
        scored = np.random.default_rng(seed).random(len(labels)) < 0.5
        model = PrivateClassifier(epsilon=epsilon, delta=delta, classes=names, titles=titles)
        told = model.fit(features[~scored], labels[~scored]).predict(features[scored])
        truth = labels[scored]
        macro = f1_score(truth, told, average="macro", labels=np.unique(truth), zero_division=0)
        scores.append([f1_score(truth, told, average="weighted", zero_division=0), macro])
    mean, spread = np.mean(scores, 0), np.std(scores, 0, ddof=1)
    return " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True))


if __name__ == "__main__":
    main()
