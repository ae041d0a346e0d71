"""A classification in SKOS reads as the same CSV would, in three syntaxes; what is not whole is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import rdflib

from storage import rdf
from storage.codelist import Code, describe_with_levels, read_codelist
from storage.errors import InputError
from storage.rdf import read_associations, read_concepts

HEAD = "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n@prefix : <http://example.org/> .\n"
CONCEPTS = """
:a a skos:Concept ; skos:notation "1" ; skos:prefLabel "Injuries"@en ; skos:inScheme :s ; skos:narrower :b .
:b a skos:Concept ; skos:notation "11" ; skos:prefLabel "Burns"@en ; skos:inScheme :s ; skos:scopeNote "not acid"@en ;
   skos:definition "Damage by\\n heat"@en , "Verletzung"@de .
:c a skos:Concept ; skos:notation "X9" ; skos:prefLabel "Scalds" ; skos:broader :b ; skos:inScheme :s .
"""
TURTLE = HEAD + CONCEPTS.replace('"Scalds"', '"Scalds"@en')


@pytest.mark.parametrize(("suffix", "form"), [(".ttl", "turtle"), (".rdf", "xml"), (".jsonld", "json-ld")])
def test_a_code_list_in_skos_is_that_of_a_csv(tmp_path: Path, suffix: str, form: str) -> None:
    """Order is that of the codes, blanks are single, the definition comes before the note, in the titles' language.

    A level that the code itself gives is not stored twice; one that it does not give is.
    """
    path = tmp_path / f"list{suffix}"
    text = TURTLE if form == "turtle" else rdflib.Graph().parse(data=TURTLE, format="turtle").serialize(format=form)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "list.csv").write_text("code,title,description\n1,Injuries,\n11,Burns,Damage by heat\n")
    read = read_codelist(path)
    assert read[:2] == read_codelist(tmp_path / "list.csv")
    assert read[2] == Code("X9", "Scalds", "", above=("Burns", "Injuries"))
    assert describe_with_levels(read)[2] == "Scalds. Burns. Injuries"


def test_concepts_that_are_above_each_other_end(tmp_path: Path) -> None:
    """Otherwise a circle would be walked for ever."""
    path = tmp_path / "list.ttl"
    path.write_text(TURTLE + ":a skos:broader :c .\n")
    assert [one.above for one in read_concepts(path, option="code list")] == [
        ("Scalds", "Burns"),
        ("Injuries", "Scalds"),
        ("Burns", "Injuries"),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TURTLE + ':c skos:notation "X10" .', "a concept has 2 skos:notation"),
        (TURTLE + ":d a skos:Concept .", "a concept has 0 skos:notation"),
        (TURTLE + ':a skos:prefLabel "Blessures"@fr .', "titles in 2 languages"),
        (TURTLE + ":c skos:inScheme :t .", "2 concept schemes"),
        (TURTLE.replace('"X9"', '"11"'), "3 concepts with 2 different notations"),
        (TURTLE.replace('"X9"', f'"{"x" * 121}"'), "at most 120 characters"),
        (HEAD, "0 concepts"),
        (TURTLE + "secret words [", "it is no turtle in UTF-8"),
        (TURTLE + "<" * 10, "it is no turtle in UTF-8"),
    ],
)
def test_what_is_not_whole_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """Without a word of the file in the message."""
    path = tmp_path / "list.ttl"
    path.write_text(content)
    with pytest.raises(InputError, match=said) as refused:
        read_codelist(path)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is in the message, and the CSV that needs none."""
    path = tmp_path / "list.ttl"
    path.write_text(TURTLE)
    monkeypatch.setattr(rdf.rdf_program, "MISSING", 0)
    monkeypatch.setattr(rdf.rdf_program, "OUTSIDE", -1)
    with pytest.raises(InputError, match=r"Install the extra: pip install '.\[skos\]'. Or give a CSV"):
        read_codelist(path)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its size alone."""
    path = tmp_path / "list.ttl"
    path.write_text(TURTLE)
    monkeypatch.setattr(rdf, "_LARGEST", 100)
    with pytest.raises(InputError, match="Keep one language and one version"):
        read_codelist(path)


XKOS = (
    TURTLE
    + """
@prefix xkos: <http://rdf-vocabulary.ddialliance.org/xkos#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
:t owl:versionInfo "3.00" .
:n1 skos:notation "110" ; skos:inScheme :t .
:n2 skos:notation "111" ; skos:inScheme :t .
[] xkos:sourceConcept :a ; xkos:targetConcept :n1 .
[] xkos:sourceConcept :b , :a ; xkos:targetConcept :n1 , :n2 .
[] xkos:sourceConcept :c .
"""
)


def test_associations_are_pairs(tmp_path: Path) -> None:
    """Several to several gives all pairs; without a target the code ended; the version is the target scheme's."""
    path = tmp_path / "table.ttl"
    path.write_text(XKOS)
    pairs, version = read_associations(path, option="--table")
    assert pairs == [("1", "110"), ("1", "111"), ("11", "110"), ("11", "111"), ("X9", "")]
    assert version == "3.00"
    path.write_text(XKOS.replace(':n2 skos:notation "111" ;', ":n2 "))
    with pytest.raises(InputError, match="a concept has 0 skos:notation"):
        read_associations(path, option="--table")
    path.write_text(TURTLE)
    with pytest.raises(InputError, match="no xkos:ConceptAssociation"):
        read_associations(path, option="--table")
