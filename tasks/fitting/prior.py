"""Embeds public texts (a code list, synthetic narratives) with the frozen encoder, once per text
and encoder.

No record is read. The titles initialise the head (`start`) and scale the word features
(`lexicon_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from mechanisms.model import encoder_files, packaged, title_words
from mechanisms.model.config import ModelConfig
from storage import demo_data
from storage.artifacts import digest, files_digest
from storage.code_levels import describe, describe_in_sentence, describe_with_levels
from storage.codelist import Code
from storage.coding_index import CodingIndex
from storage.errors import Missing
from storage.ingest import read_codes
from storage.json_values import Figures
from tasks.parameters import DataParameters
from tasks.running.stage import Context, Step, Work, run_step

if TYPE_CHECKING:
    import torch

    from mechanisms.model.classifier import Classifier
    from mechanisms.model.lexicon import Lexicon
    from mechanisms.model.word_vectors import Embed, WordVectors

_FILE, _HEAD = "titles.safetensors", "head.safetensors"
INDEX_TEXTS, INDEX_HEAD = "coding index", "head at the coding index"
"""Labels of the stages for public examples."""


def stages(model: ModelConfig, data: DataParameters) -> list[Step]:
    """Returns the stages that a run needs before its fits: one for the code list if its titles are
    used, and two for a coding index.

    The first is only possible for a list in which every code is a class. For observed codes, which
    ingest counts, `start` embeds the titles.
    """
    public = [narratives(model)] if model.lexical == "hashed" else []
    codelist = data.complete_codelist
    if "titles" not in (model.prior, model.lexical) or codelist is None:
        return public
    codes = read_codes(codelist, data.ingest).codes
    public.append(titles(model, codes))
    if model.prior_examples and (index := data.coding_index) is not None:
        public += [entries(model, index), head_at_index(model, codes, index)]
    return public


def titles(model: ModelConfig, codes: Sequence[Code]) -> Step:
    """Embeds each code's public text. Refuses a list without any title."""
    texts = texts_of(model, codes)
    if not any(texts[0]):
        setting = "prior" if model.prior == "titles" else "lexical"
        instead = (
            "--set model.prior=none" if model.prior == "titles" else "--set model.lexical=hashed"
        )
        raise Missing(
            f"model.{setting}: the code list has no titles. Pass a list with titles "
            f"with --codelist, or {instead}",
            kind="no-titles",
        )
    return _step("titles", model, texts)


def texts_of(model: ModelConfig, codes: Sequence[Code]) -> list[list[str]]:
    """Returns the kinds of text of each code: its title, the title with the levels above, and the
    title in the sentence.

    The last kind exists only if the model has a sentence. A code without title or description has
    empty texts.
    """
    texts = [describe(codes), describe_with_levels(codes)]
    if model.prior_sentence:
        in_sentence = describe_in_sentence(codes, model.prior_sentence)
        texts.append(
            [sentence or title for sentence, title in zip(in_sentence, texts[0], strict=True)]
        )
    return texts


def narratives(model: ModelConfig) -> Step:
    """Embeds synthetic narratives, the public texts for a model without a code list."""
    return _step("synthetic narratives", model, [invented_narratives()])


@cache
def invented_narratives() -> list[str]:
    """Returns generated narratives, which are the same everywhere."""
    return demo_data.narratives(_NARRATIVES, seed=_SEED)


_NARRATIVES, _SEED = 256, 20261124


def encoder_digest(model: ModelConfig) -> str:
    """Returns the digest of an encoder's files, or its revision at the hub."""
    files = encoder_files.digest_parts(model.encoder)
    return files_digest(files) if files else str(encoder_files.revision(model.encoder))


def _step(label: str, model: ModelConfig, texts: list[list[str]]) -> Step:
    return Step(
        name="titles",
        label=label,
        config={
            "texts": digest(texts),
            "encoder_digest": encoder_digest(model),
            "max_length": model.max_length,
        },
        inputs={},
        body=partial(_embed, model=model, texts=texts),
        modules=("tasks.fitting.prior",),
    )


def _embed(work: Work, *, model: ModelConfig, texts: list[list[str]]) -> Figures:
    from mechanisms.model import checkpoint, classifier, prior

    device = classifier.device_of(work.context.device)
    public = [text for kind in texts for text in kind]
    places = {text: place for place, text in enumerate(dict.fromkeys(public))}
    done = 0

    def on_batch(number: int) -> None:
        nonlocal done
        done += number
        work.progress(done, len(places))

    distinct = prior.embed(model, list(places), device=device, on_batch=on_batch)
    embeddings = distinct[[places[text] for text in public]]
    with_title = [bool(text) for text in texts[0]]
    kinds = {"embeddings": embeddings.unflatten(0, (len(texts), len(with_title)))}
    checkpoint.save(work.out / _FILE, kinds, {"with_title": with_title})
    return {"codes": len(with_title), "with_text": sum(with_title)}


def embeddings(context: Context, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Loads the embeddings [kinds, texts, width] of a step, and which texts are not
    empty. Computes them if needed.
    """
    import torch

    from mechanisms.model import checkpoint

    folder = context.store.open(step.find(context.store) or run_step(context, step))
    tensors, header = checkpoint.load(folder / _FILE)
    return tensors["embeddings"], torch.tensor(header["with_title"])


def start(
    context: Context, built: Classifier, codes: Sequence[Code], lexicon: Lexicon | None
) -> None:
    """Puts the prior of a code list into an untrained classifier."""
    import torch

    from mechanisms.model import prior

    embedded, with_title = embeddings(context, titles(built.config, codes))
    if lexicon is not None:
        kinds = zip(embedded, texts_of(built.config, codes), strict=True)
        embedded = torch.stack([lexicon.join(kind, lexicon.words(texts)) for kind, texts in kinds])
    prior.start(built, embedded, with_title)


def start_at_index(
    context: Context, built: Classifier, codes: Sequence[Code], index: CodingIndex
) -> None:
    """Trains a head that starts at titles on the entries of a public index, so that
    it remains near the titles.
    """
    from mechanisms.model import checkpoint, prior

    step = head_at_index(built.config, codes, index)
    folder = context.store.open(step.find(context.store) or run_step(context, step))
    prior.put(built, checkpoint.load(folder / _HEAD)[0]["weight"])


def entries(model: ModelConfig, index: CodingIndex) -> Step:
    return _step(INDEX_TEXTS, model, [[text for text, _ in index.entries]])


def head_at_index(model: ModelConfig, codes: Sequence[Code], index: CodingIndex) -> Step:
    """Trains the head on the entries of a coding index, near the titles."""

    def body(work: Work) -> Figures:
        import torch

        from mechanisms.model import checkpoint, classifier, prior

        lexicon = lexicon_of(work.context, model, codes)
        built = classifier.build(
            model,
            num_labels=len(codes),
            seed=0,
            device=classifier.device_of(work.context.device),
            lexicon=lexicon,
        )
        start(work.context, built, codes, lexicon)
        features = embeddings(work.context, entries(model, index))[0][0]
        if lexicon is not None:
            features = lexicon.join(features, lexicon.words([text for text, _ in index.entries]))
        labels = torch.tensor(index.labels(codes))
        found = prior.at_examples(built, features, labels, progress=work.progress)
        checkpoint.save(work.out / _HEAD, {"weight": found.weight}, {})
        return {
            "entries": len(index.entries),
            "pull": found.pull,
            "left_out_loss": found.left_out_loss,
        }

    return Step(
        name="public-start",
        label=INDEX_HEAD,
        config={
            "model": model.model_dump(mode="json"),
            "codes": digest([code.as_json() for code in codes]),
            "index": index.digest,
            "encoder_digest": encoder_digest(model),
        },
        inputs={},
        body=body,
        modules=("tasks.fitting.prior",),
    )


class PublicOfLexicon(NamedTuple):
    """Stages that embed the public texts of a lexicon."""

    scales: Step
    """Of texts that set the scales of its blocks."""
    unit: Step | None = None
    """Of titles that tell the unit of the encoder's features; None where it is known."""
    words: Step | None = None
    """Of words whose vectors do not come with the program; None without any."""

    @property
    def steps(self) -> list[Step]:
        return [step for step in self if step is not None]


def public_of_lexicon(model: ModelConfig, codes: Sequence[Code]) -> PublicOfLexicon | None:
    """Returns the stages that the lexicon of a code list reads; None where the model reads no
    words. Loads no torch where the encoder comes with the program.
    """
    if model.lexical == "none":
        return None
    of_injuries = _step("titles", model, [title_words.injury_titles()])
    unit = None if model.encoder in title_words.NORMS else of_injuries
    if model.lexical == "hashed":
        return PublicOfLexicon(narratives(model), unit)
    by = model.model_copy(update={"encoder": packaged.for_words(model.encoder)})
    titled = _titles_of_lexicon(model, codes)
    words = title_words.to_embed(
        by.encoder, (word for title in titled for word in title_words.words_of(title))
    )
    return PublicOfLexicon(
        of_injuries if model.lexical_titles == "injuries" else titles(model, codes),
        unit,
        _step("words", by, [words]) if words else None,
    )


def _titles_of_lexicon(model: ModelConfig, codes: Sequence[Code]) -> list[str]:
    return title_words.injury_titles() if model.lexical_titles == "injuries" else describe(codes)


def lexicon_of(context: Context, model: ModelConfig, codes: Sequence[Code]) -> Lexicon | None:
    """Builds the lexicon of a code list. Returns None if the model has no word features.

    The scales come from the titles, within the sentence if the model has one. `hashed` needs no
    code list, because its scales come from synthetic narratives.
    """
    from mechanisms.model import lexicon, word_vectors

    public = public_of_lexicon(model, codes)
    if public is None:
        return None

    def embed(step: Step | None) -> Embed:
        def features(texts: list[str]) -> torch.Tensor:
            assert step is not None  # nothing is asked for that comes with the program
            return embeddings(context, step)[0][0]

        return features

    language = model.lexical_language
    unit = lexicon.unit_of(model.encoder, embed(public.unit))
    embedded, with_title = embeddings(context, public.scales)
    if model.lexical == "hashed":
        return lexicon.build(
            "hashed",
            texts=invented_narratives(),
            features=embedded[0],
            unit=unit,
            language=language,
        )

    def vectors_of(words: set[str]) -> WordVectors:
        return word_vectors.of(packaged.for_words(model.encoder), words, embed(public.words))

    titled = texts = _titles_of_lexicon(model, codes)
    features = embedded[0]
    if model.lexical_titles == "codelist":
        kind = -1 if model.prior_sentence else 0
        texts = [text for text in texts_of(model, codes)[kind] if text]
        features = embedded[kind][with_title]
    return lexicon.of_titles(
        titled,
        vectors_of,
        texts=texts,
        features=features,
        unit=unit,
        leave_out=[model.prior_sentence],
        language=language,
    )
