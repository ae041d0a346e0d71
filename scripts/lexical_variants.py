#!/usr/bin/env python
"""Compares public vocabularies next to the encoder's features, by cross-validation within the training half alone.

    python scripts/lexical_variants.py WORKSPACE --codelist oiics201_nature.csv --out docs/formal/lexical.json

WORKSPACE is one in which `retrain --set model.lexical=none` has prepared features of a mean-pooled encoder. A fifth of
the training half is held out, in folds; the test half is never read. Every block of columns has the same norm on the
titles, and all together the encoder's, as the features stage has it. Noise has no seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from studies import HELD_OUT, f1, fold_of, prepared, write
from torch import Tensor

from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import classifier, prior
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.lexicon import stems_of
from mechanisms.prior_descent import PriorDescent
from storage.codelist import describe, describe_in_sentence, describe_with_levels, read_codelist
from storage.datasets import load_split

HASHED = 1024
Words = Callable[[Sequence[str]], Tensor]


def _stem_pairs(text: str) -> list[str]:
    return [" ".join(pair) for pair in pairwise(stems_of(text))]


def of_titles(analyzer: Any, titles: Sequence[str], dropped: Sequence[str]) -> Words:
    """Returns a one for each term of the titles that a text has, without those of the sentence around titles."""
    terms = {term for title in titles for term in analyzer(title)} - {
        term for text in dropped for term in analyzer(text)
    }
    counter = CountVectorizer(analyzer=analyzer, vocabulary=sorted(terms), binary=True)
    return partial(_block, counter)


def of_characters(titles: Sequence[str], sizes: tuple[int, int]) -> Words:
    """Returns hashed counts of the n-grams of characters that titles have, within words."""
    cut: Any = CountVectorizer(analyzer="char_wb", ngram_range=sizes).build_analyzer()
    allowed = {term for title in titles for term in cut(title)}
    known: Any = partial(_known, cut, allowed)
    return partial(_block, HashingVectorizer(analyzer=known, n_features=HASHED, norm="l2"))


def _known(cut: Callable[[str], list[str]], allowed: set[str], text: str) -> list[str]:
    return [term for term in cut(text) if term in allowed]


def _block(vectorizer: Any, texts: Sequence[str]) -> Tensor:
    return torch.from_numpy(vectorizer.transform(texts).astype("float32").toarray())


class Study:
    """Holds narratives, titles, the encoder's features of both, and the vocabularies."""

    def __init__(self, workspace: Path, codelist: Path, *, sentence: str) -> None:
        self.features, self.labels = prepared(workspace)
        dataset = next((workspace / "private" / "stages" / "ingest").iterdir())
        self.texts = list(load_split(dataset, "train")["text"])
        codes = read_codelist(codelist)
        kinds = [describe(codes), describe_with_levels(codes), describe_in_sentence(codes, sentence)]
        model = ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean")
        self.kinds, self.known = kinds, torch.tensor([bool(text) for text in kinds[0]])
        self.embeddings = torch.stack([prior.embed(model, kind, device="cpu") for kind in kinds])
        titles = [text for text in kinds[0] if text]
        stems = of_titles(stems_of, titles, [sentence, "and for from the into with other unspecified not"])
        pairs, grams = of_titles(_stem_pairs, titles, []), of_characters(titles, (3, 5))
        self.variants: Mapping[str, Sequence[Words]] = {
            "encoder alone": (),
            "stems of titles": (stems,),
            "stems and pairs of stems": (stems, pairs),
            "n-grams of characters": (grams,),
            "stems and n-grams of characters": (stems, grams),
        }

    def joined(self, blocks: Sequence[Words]) -> tuple[Tensor, Tensor]:
        """Returns features of narratives and of titles with these blocks, each at the same norm on the titles."""
        share = math.sqrt(1 / (1 + len(blocks)))
        encoder = self.embeddings.flatten(0, 1).square().sum(1).mean().sqrt()
        records, titles = [self.features * share], [self.embeddings * share]
        for block in blocks:
            public = torch.stack([block([text or "" for text in kind]) for kind in self.kinds])
            scale = share * encoder / public.flatten(0, 1).square().sum(1).mean().sqrt()
            records.append(block(self.texts) * scale)
            titles.append(public * scale)
        return torch.cat(records, 1), torch.cat(titles, 2)

    def scores(self, blocks: Sequence[Words], *, epsilon: float, delta: float, folds: int) -> list[tuple[float, float]]:
        """Returns weighted and macro F1 on the held-out fifth of each fold."""
        records, titles = self.joined(blocks)
        config = ModelConfig(pooling="none", prior_scale=ModelConfig.model_fields["prior_scale"].default)

        def untrained() -> classifier.Classifier:
            made = classifier.build(config, num_labels=len(self.known), seed=0, width=records.shape[1])
            prior.start(made, titles, self.known)
            return made

        scored = []
        for fold in range(folds):
            held, training = fold_of(self.labels, fold)
            task = Task(records=len(training), classes=len(self.known), target_epsilon=epsilon, delta=delta)
            run = Run(classes=len(self.known), seed=fold, classifier=untrained)
            given = Records(FeatureInputs(records[training]), self.labels[training])
            fitted = PriorDescent().plan(task).fit(given, run)
            predicted = fitted.model.log_probabilities(FeatureInputs(records[held])).argmax(1)
            scored.append(f1(self.labels[held], predicted))
        return scored


def main() -> None:
    """Scores every variant at every epsilon; writes each row when it is scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--codelist", type=Path, required=True)
    parser.add_argument("--sentence", default="An employee suffered {}.", help="model.prior_sentence of the profile")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", help="some of them; all by default")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    study = Study(given.workspace, given.codelist, sentence=given.sentence)
    rows = []
    for name in given.variants or study.variants:
        for epsilon in given.epsilons:
            pairs = study.scores(study.variants[name], epsilon=epsilon, delta=given.delta, folds=given.folds)
            columns = [[pair[k] for pair in pairs] for k in (0, 1)]
            means, spreads = [round(fmean(one), 4) for one in columns], [round(stdev(one), 4) for one in columns]
            row = {"variant": name, "epsilon": epsilon, "weighted_f1": means[0], "macro_f1": means[1]}
            rows.append(row | {"spread": spreads})
            print(rows[-1], flush=True)
            write(given.out, {"delta": given.delta, "folds": given.folds, "scored_on": HELD_OUT}, rows)


if __name__ == "__main__":
    main()
