"""Lists the unpublished texts of a bundle, which the plan's signature must cover."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mechanisms.model import encoder_files
from storage.artifacts import digest, files_digest
from storage.codelist import Code
from storage.egress.public_lists import published_name, reviewed_encoder
from storage.ledger.policy import RegistryStatement
from tasks.bundle.stated_fields import SENTENCES, WRITTEN_BY_THE_PROGRAM

if TYPE_CHECKING:
    from tasks.fitting.ingest import Classification


_NUMBER = re.compile(r"\d{1,8}(?:\.\d{1,4})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,15}")
_ENCODER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SPECIAL = re.compile(
    r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d{1,3})\]|</?s>|<(?:pad|unk|mask)>|<\|endoftext\|>", re.ASCII
)
_UNSEEN = re.compile(
    r"(?<= ) |[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible characters that Unicode calls printable: fillers, selectors, unusual blanks.
"""
_PUBLIC_NAME = 12
"""A classification's name and version are listed from this many letters and digits on."""


def own_texts(
    codes: Sequence[Code],
    facts: Classification,
    encoder: str,
    *,
    statement: Mapping[str, object] | None = None,
    label: str = "",
    registry: RegistryStatement | None = None,
) -> tuple[str, ...]:
    """Lists every text of a bundle that is neither published nor a short name or number.

    Args:
        codes: as in `codelist.csv`.
        facts: figures of the ingest: classification and version.
        encoder: its name or folder.
        statement: `privacy_statement.json`, or those of its fields that are known.
        label: label of the release, which a record for a registry contains.
        registry: fields of the policy that such a record repeats; None if there is no record.
    """
    # guard: test_a_title_is_signed_before_anything_is_charged
    texts = [] if published_name(codes) is not None else code_texts(codes)
    classification = " ".join(
        filter(None, (facts.get("classification", ""), facts.get("classification_version", "")))
    )
    if (
        len(re.findall(r"\w", classification)) >= _PUBLIC_NAME
        or len(classification) > 2 * _PUBLIC_NAME
        or not classification.isascii()
    ):
        texts.append(f"classification: {classification}")
    texts += _texts_of_statement({} if statement is None else statement)
    if registry is not None:
        # guard: test_what_the_record_for_a_registry_says_is_listed
        if not _NAME.fullmatch(label):
            texts.append(f"label of the release: {label}")
        registry_fields = registry.model_dump(mode="json")
        texts += [f"registry: {name}: {text}" for name, text in _leaves(registry_fields) if text]
    if not _ENCODER.fullmatch(name_of(encoder)):
        texts.append(f"encoder: {name_of(encoder)}")
    if reviewed_encoder(encoder_digest(encoder)) is None:
        texts += _texts_of_encoder(encoder)
    return tuple(map(_visible, texts))


_NARROW_FORMS = {
    "population": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,23}"),
    "privacy_unit": re.compile(r"record|unit \([A-Za-z0-9][A-Za-z0-9._-]{0,15}\)"),
}


def _texts_of_statement(statement: Mapping[str, object]) -> Iterator[str]:
    for field, value in statement.items():
        texts = (
            [] if field in WRITTEN_BY_THE_PROGRAM else [text for _, text in _leaves(value, field)]
        )
        if field in SENTENCES:
            # guard: test_what_a_sentence_quotes_is_listed
            texts = [quoted for text in texts for quoted in text.split("`")[1::2]]
        narrow = _NARROW_FORMS.get(field, _NAME)
        # guard: test_what_is_handed_in_is_listed_whole
        texts = [text for text in texts if field in SENTENCES or not narrow.fullmatch(text)]
        yield from (f"{field}: {text}" for text in texts)


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text of a parsed document with its field, including keys of inner objects."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            if name:
                yield name, str(key)
            yield from _leaves(entry, name or str(key))
    elif isinstance(value, Sequence):
        for entry in value:
            yield from _leaves(entry, name)


def _visible(text: str) -> str:
    seen = _UNSEEN.sub(lambda unseen: _escape(unseen[0]), text.replace("\\", "\\\\"))
    return "".join(c if c.isprintable() else _escape(c) for c in seen)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}"


def code_texts(codes: Sequence[Code]) -> list[str]:
    """Lists the entries of an unpublished code list, except numbers without words."""
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
    """Returns the digest of an encoder's files, or of its name and commit if it is from the hub."""
    files = encoder_files.digest_parts(encoder)
    if not files:
        return digest({"hub": encoder, "revision": encoder_files.revision(encoder)})
    return files_digest(files)


def describe_encoder(encoder: str, sha256: str) -> str:
    name = reviewed_encoder(sha256)
    if name is not None:
        return f"{name}, reviewed (SHA-256 {sha256})"
    return (
        f"{encoder}, SHA-256 {sha256}: on no reviewed list. Its vocabulary and weights are "
        f"released "
        "unchanged, and whoever approves is responsible for them"
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
"""Texts that the libraries write into every model's configuration."""
