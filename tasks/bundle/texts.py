"""Lists the texts of a bundle that no published list has, for the plan to sign."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mechanisms.model import encoder_files
from storage.artifacts import digest, files_digest
from storage.codelist import Code
from storage.egress.public_lists import published_name, reviewed_encoder

_NUMBER = re.compile(r"\d{1,8}(?:\.\d{1,4})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,15}")
_ENCODER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SPECIAL = re.compile(
    r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d{1,3})\]|</?s>|<(?:pad|unk|mask)>|<\|endoftext\|>", re.ASCII
)
_UNSEEN = re.compile(
    r"(?<= ) |[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that a reader does not see although Unicode calls them printable: fillers, selectors,
further blanks.
"""
_PUBLIC_NAME = 12
"""Letters and digits of a classification's name and version from which on they are listed."""


def own_texts(
    codes: Sequence[Code], facts: Mapping[str, Any], encoder: str, *, unit: str | None = None
) -> tuple[str, ...]:
    """Lists every text of a bundle that is neither published nor a name or number in a narrow form.

    Args:
        facts: figures of the ingest: classification, version and cohorts.
        encoder: its name or folder.
        unit: header of the column whose units are protected, which the statement names.
    """
    # guard: test_a_title_is_signed_before_anything_is_charged
    texts = [] if published_name(codes) is not None else code_texts(codes)
    named = " ".join(
        filter(None, (facts.get("classification", ""), facts.get("classification_version", "")))
    )
    if (
        len(re.findall(r"\w", named)) >= _PUBLIC_NAME
        or len(named) > 2 * _PUBLIC_NAME
        or not named.isascii()
    ):
        texts.append(f"classification: {named}")
    texts += [
        f"cohort: {cohort}" for cohort in facts.get("cohorts", ()) if not _NAME.fullmatch(cohort)
    ]
    # guard: test_what_is_handed_in_is_listed_whole
    if unit and not _NAME.fullmatch(unit):
        texts.append(f"column of the protected unit: {unit}")
    if not _ENCODER.fullmatch(name_of(encoder)):
        texts.append(f"encoder: {name_of(encoder)}")
    if reviewed_encoder(encoder_digest(encoder)) is None:
        texts += _texts_of_encoder(encoder)
    return tuple(map(_visible, texts))


def _visible(text: str) -> str:
    seen = _UNSEEN.sub(lambda unseen: _escape(unseen[0]), text.replace("\\", "\\\\"))
    return "".join(c if c.isprintable() else _escape(c) for c in seen)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}"


def code_texts(codes: Sequence[Code]) -> list[str]:
    """Lists the entries of a code list that is not published; a number without words is none."""
    listed = (
        code for code in codes if code.title or code.description or not _NUMBER.fullmatch(code.code)
    )
    return [
        f"code list: {' '.join(filter(None, (code.code, code.title, code.description)))}"
        for code in listed
    ]


def name_of(encoder: str) -> str:
    """Returns an encoder's name without its folder."""
    return encoder.rstrip("/").rpartition("/")[2]


def encoder_digest(encoder: str) -> str:
    """Returns the digest of an encoder's files; of one from the hub, of its name and commit."""
    files = encoder_files.digest_parts(encoder)
    if not files:
        return digest({"hub": encoder, "revision": encoder_files.revision(encoder)})
    return files_digest(files)


def describe_encoder(encoder: str, sha256: str) -> str:
    """Describes an encoder for the page that someone signs."""
    name = reviewed_encoder(sha256)
    if name is not None:
        return f"{name}, reviewed (SHA-256 {sha256})"
    return (
        f"{encoder}, SHA-256 {sha256}: on no reviewed list. Its vocabulary and weights leave as "
        "they are, and "
        "anyone who approves answers for them"
    )


def _texts_of_encoder(encoder: str) -> Iterator[str]:
    tokens = (
        str(token) for token in encoder_files.load_tokenizer(encoder).added_tokens_decoder.values()
    )
    yield from (
        f"token of the encoder: {token}" for token in tokens if not _SPECIAL.fullmatch(token)
    )
    for setting in sorted(set(encoder_files.settings(encoder)) - LIBRARY_SETTINGS):
        if not (_SPECIAL.fullmatch(setting) or encoder_files.is_usual(setting)):
            yield f"setting of the encoder: {setting}"


LIBRARY_SETTINGS = frozenset(
    {
        "",
        "0",
        "0_Transformer",
        "1",
        "1_Pooling",
        "2",
        "2_Dense",
        "SentenceTransformer",
        "absolute",
        "bfloat16",
        "cosine",
        "feature-extraction",
        "float16",
        "float32",
        "forward",
        "last_hidden_state",
        "left",
        "longest_first",
        "mean",
        "replace",
        "right",
        "sentence_embedding",
        "sentence_transformers.models.Dense",
        "sentence_transformers.models.Pooling",
        "sentence_transformers.models.Transformer",
        "single_label_classification",
        "token_embeddings",
        "tokenizers",
        "torch.nn.modules.linear.Identity",
    }
)
"""Texts that the libraries write into the configuration of any model."""
