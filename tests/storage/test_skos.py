"""A classification in SKOS becomes the code list that its publisher prints, in one language;
choices are named.
"""

from pathlib import Path

import pytest
import rdflib
from refusals import of_kind
from typer.testing import CliRunner

from flows.cli import app
from storage.code_levels import describe_with_levels
from storage.codelist import Code, read_codelist
from storage.errors import InputError
from storage.skos import import_codes

HEAD = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix xkos: <http://rdf-vocabulary.ddialliance.org/xkos#> .
@prefix xl: <http://www.w3.org/2008/05/skos-xl#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix : <http://example.org/> .
"""
TURTLE = (
    HEAD
    + """
:a a skos:Concept ; skos:notation "A" ; skos:prefLabel "SECTION A - Agriculture"@en, "A Agriculture"@fr ;
   skos:inScheme :s .
:b a skos:Concept ; skos:notation "01.1" ; skos:prefLabel "01.1 Growing of crops"@en, "01.1 - Cultures"@fr ;
   skos:inScheme :s ; skos:broader :a ; xkos:coreContentNote "Crops\\n grown once"@en, "Cultures annuelles"@fr ;
   xkos:exclusionNote "fruit"@en .
:c a skos:Concept ; skos:notation "01.19" ; skos:prefLabel "01.19 Flowers"@en, "Fleurs"@fr ; skos:inScheme :s .
:b skos:narrower :c .
:d a skos:Concept ; skos:notation "01.20" ; skos:prefLabel "Horses"@en ; skos:inScheme :s ; owl:deprecated true .
:e a skos:Concept ; skos:prefLabel "Top"@en ; skos:inScheme :s .
"""
)


def written(folder: Path, text: str, name: str = "list.ttl") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("suffix", "form"), [(".ttl", "turtle"), (".rdf", "xml"), (".nt", "nt")])
def test_one_language_of_a_published_list(tmp_path: Path, suffix: str, form: str) -> None:
    """Titles lose their code, notes are descriptions, what is deprecated or has no notation is
    counted.
    """
    text = rdflib.Graph().parse(data=TURTLE, format="turtle").serialize(format=form)
    found = import_codes(written(tmp_path, text, f"list{suffix}"), language="EN")
    assert found.rows == [
        ("01.1", "Growing of crops", "Crops grown once", "A"),
        ("01.19", "Flowers", "", "01.1"),
        ("A", "Agriculture", "", ""),
    ]
    assert (found.language, found.deprecated, found.without_notation, found.without_title) == (
        "en",
        1,
        1,
        0,
    )


def test_the_command_writes_what_every_command_reads(tmp_path: Path) -> None:
    """The parents of the CSV are levels above, also where the code does not begin with them."""
    out = tmp_path / "codes.csv"
    options = ["codelist", str(written(tmp_path, TURTLE)), "--language", "fr", "--out", str(out)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "3 codes in fr" in result.output
    assert "1 deprecated concepts and 1 without a notation left out" in result.output
    codes = read_codelist(out)
    assert codes[0] == Code("01.1", "Cultures", "Cultures annuelles", above=("Agriculture",))
    assert describe_with_levels(codes)[1] == "Fleurs. Cultures. Agriculture"


def test_untagged_titles_serve_every_language(tmp_path: Path) -> None:
    """A tagged one comes first; a resource that holds its text is read, and a title in another
    language is none.
    """
    more = """
:f a skos:Concept ; skos:notation "02" ; skos:prefLabel "Forests" ; skos:inScheme :s .
:g a skos:Concept ; skos:notation "03" ; xl:prefLabel [ xl:literalForm "Fish"@en ] ; skos:inScheme :s .
:h a skos:Concept ; skos:notation "04" ; skos:prefLabel "Untagged", "Tagged"@en ; skos:inScheme :s .
"""
    path = written(tmp_path, TURTLE + more)
    titles = {code: title for code, title, *_ in import_codes(path, language="en").rows}
    assert (titles["02"], titles["03"], titles["04"]) == ("Forests", "Fish", "Tagged")
    french = import_codes(path, language="fr")
    titles = {code: title for code, title, *_ in french.rows}
    assert (titles["02"], titles["03"], titles["04"]) == ("Forests", "", "Untagged")
    assert french.without_title == 1


def test_a_kind_of_notation_and_a_scheme_are_chosen(tmp_path: Path) -> None:
    """By form, by data type, by the end of the scheme's address."""
    text = (
        HEAD
        + """
:a a skos:Concept ; skos:notation "1311", "13.11" ; skos:prefLabel "Cuts" ; skos:inScheme :new .
:b a skos:Concept ; skos:notation "0140", "01.40"^^:internal ; skos:prefLabel "Sprains" ; skos:inScheme :new .
:c a skos:Concept ; skos:notation "1311" ; skos:prefLabel "Other" ; skos:inScheme :old .
"""
    )
    path = written(tmp_path, text)
    with pytest.raises(
        InputError,
        check=of_kind("several-schemes", saying=("2", "http://example.org/new (2 concepts), http")),
    ):
        import_codes(path, notation="plain")
    with pytest.raises(
        InputError, check=of_kind("several-notations", saying="'dotted' (13.11), 'plain' (1311)")
    ):
        import_codes(path, scheme="new")
    assert [row[0] for row in import_codes(path, scheme="new", notation="plain").rows] == [
        "0140",
        "1311",
    ]
    dotted = import_codes(path, scheme="http://example.org/new", notation="dotted")
    assert [row[0] for row in dotted.rows] == ["01.40", "13.11"]
    internal = written(tmp_path, text.replace('"13.11"', '"13.11"^^:internal'))
    assert [row[0] for row in import_codes(internal, scheme="new", notation="internal").rows] == [
        "01.40",
        "13.11",
    ]


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (TURTLE, of_kind("unknown-language", saying="en (4), fr (3)")),
        (TURTLE.replace("@fr", "@de"), of_kind("unknown-language", saying="de (3), en (4)")),
        (
            TURTLE.replace("@fr", "@en").replace('"01.19"', '"01.1"'),
            of_kind("several-concepts", saying=("1", "01.1")),
        ),
        (
            TURTLE.replace("@fr", "@en").replace('"01.19"', f'"{"x" * 121}"'),
            of_kind("too-few-concepts", saying="120"),
        ),
        (HEAD, of_kind("too-few-concepts", saying="0")),
        (TURTLE + "secret words [", of_kind("unreadable-graph")),
    ],
)
def test_what_is_unclear_is_refused(tmp_path: Path, content: str, refusal: of_kind) -> None:
    """With the choices; a parser's error is not passed on."""
    path = written(tmp_path, content)
    with pytest.raises(InputError, check=refusal) as refused:
        import_codes(path)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    if content == TURTLE:
        with pytest.raises(InputError, check=of_kind("unknown-language", saying="en (4), fr (3)")):
            import_codes(path, language="it")


CODES = """:s a skos:ConceptScheme .
:a a skos:Concept ; skos:inScheme :s ; skos:notation "1" ; skos:prefLabel "Cuts" .
"""


def _concept(label: str, notation: str = '"2"') -> str:
    return (
        f":b a skos:Concept ; skos:inScheme :s ; skos:notation {notation} ; skos:prefLabel "
        f"{label} ."
    )


TURTLES = {
    "long literal": HEAD + CODES + _concept('"""Falls, "all"\nkinds"""'),
    "long literal in single quotes": HEAD + CODES + _concept("'''Falls 'from' a step'''"),
    "single quotes": HEAD + CODES + _concept("'Falls \"here\"'"),
    "language with a region": HEAD
    + CODES.replace('"Cuts"', '"Cuts"@en-GB')
    + _concept('"Falls"@en-GB'),
    "language in other letters": HEAD
    + CODES.replace('"Cuts"', '"Cuts"@EN-gb')
    + _concept('"Falls"@en-GB'),
    "escapes": HEAD + CODES + _concept(r'"Br\u00FBl\U000000E9s \"a\" \\ b"'),
    "SPARQL's prefixes and base": HEAD.replace("@prefix", "PREFIX").replace("> .", ">")
    + "BASE <http://example.org/x/>\n"
    + CODES.replace(":a ", "<y> ", 1)
    + _concept('"Falls"'),
    "base and relative addresses": HEAD
    + "@base <http://example.org/x/> .\n"
    + CODES
    + _concept('"Falls"').replace(":b ", "<y#b> "),
    "blank nodes": HEAD + CODES + _concept('"Falls"').replace(":b a", "_:b a"),
    "blank node with its own properties": HEAD
    + CODES
    + '[] a skos:Concept ; skos:inScheme :s ; skos:notation "2" ; skos:prefLabel "Falls" .',
    "collection": HEAD + CODES + _concept('"Falls"') + "\n:s skos:memberList ( :a :b [] ( ) ) .",
    "comments and few blanks": HEAD
    + "# of 2023\n"
    + CODES
    + _concept('"Falls # not a comment"')
    + "# end",
    "objects, predicates and ends": HEAD + CODES + _concept('"Falls"').replace(" .", " ;; .", 1),
    "number as a notation": HEAD + CODES + _concept('"Falls"', "02.50"),
    "escaped local name": HEAD + CODES + _concept('"Falls"').replace(":b ", r":b\-\,c%20 "),
}


def _as_rdflib_reads(text: str) -> dict[str, str]:
    skos, graph = (
        rdflib.Namespace("http://www.w3.org/2004/02/skos/core#"),
        rdflib.Graph().parse(data=text),
    )
    concepts = graph.subjects(rdflib.RDF.type, skos.Concept)
    return {
        str(graph.value(each, skos.notation)): str(graph.value(each, skos.prefLabel))
        for each in concepts
    }


@pytest.mark.parametrize("name", TURTLES)
def test_turtle_is_read_as_its_graph_has_it(tmp_path: Path, name: str) -> None:
    """Each form of W3C's grammar that a publisher may write."""
    found = import_codes(written(tmp_path, TURTLES[name]))
    expected = {
        code: " ".join(title.split()) for code, title in _as_rdflib_reads(TURTLES[name]).items()
    }
    assert {code: title for code, title, *_ in found.rows} == expected
    assert len(expected) == 2


@pytest.mark.parametrize(
    "broken",
    [
        *('"Falls', '"Falls\nhere"', '"Falls"@', r'"Falls \q"', r'"Falls \u00Z"', '"Falls"^^'),
        *('"Falls" ; no:such "x"', "( :a"),
    ],
)
def test_no_turtle_is_refused(tmp_path: Path, broken: str) -> None:
    with pytest.raises(InputError, check=of_kind("unreadable-graph")):
        import_codes(written(tmp_path, HEAD + CODES + _concept(broken)))
