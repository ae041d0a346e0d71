"""Code lists: order and spelling kept, faults refused by row."""

from pathlib import Path

import pytest
from refusals import of_kind

from storage.code_levels import describe, describe_in_sentence, describe_with_levels
from storage.codelist import Code, describe_shape, normalise_code, read_codelist, read_parents
from storage.errors import InputError


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        *(
            (" 111\t", "111"),
            ("111.0", "111"),
            ("111.000", "111"),
            ("0111", "0111"),
            ("111.5", "111.5"),
        ),
        *(("111.", "111."), ("S72.0", "S72.0"), ("1e3", "1e3"), ("a b", "a b"), ("", "")),
        ("\u00a0111\u00a0", "111"),
        ("E\u03011", "\u00c91"),
    ],
)
def test_codes_are_touched_as_little_as_can_be(raw: str, code: str) -> None:
    """Outer blanks and a table program's `.0` go, nothing else; twice is once."""
    assert normalise_code(raw) == code
    assert normalise_code(code) == code


def test_an_accent_is_part_of_its_letter_however_it_is_encoded(tmp_path: Path) -> None:
    """In a list and in labels alike, so that a label is found whichever form the list has."""
    path = tmp_path / "list.csv"
    path.write_text("code,title\nE\u03011,Burn\n\u00c92,Cut\n", encoding="utf-8")
    assert [entry.code for entry in read_codelist(path)] == ["\u00c91", "\u00c92"]
    path.write_text("code,parent\nE\u03011,\u00c9\n\u00c92,E\u0301\n", encoding="utf-8")
    parents = read_parents(path, option="--groups")
    assert parents == {"\u00c91": "\u00c9", "\u00c92": "\u00c9"}
    assert normalise_code("\u00c91") == normalise_code("E\u03011") == "\u00c91"


def test_a_known_spelling_stays() -> None:
    """Where the classification itself has 250.0, it is no artefact."""
    assert normalise_code("250.0", {"250.0", "250"}) == "250.0"
    assert normalise_code("250.0", {"250"}) == "250"


def test_messages_show_the_shape_of_values_alone() -> None:
    """How many differ, how long they are and what they are made of: enough to know a wrong column
    by.
    """
    assert describe_shape(["111", "111", "9"]) == "2 distinct values of 1 to 3 characters: digits"
    assert (
        describe_shape(["123-45-6789"]) == "1 distinct values of 11 characters: digits, other signs"
    )
    assert (
        describe_shape(["fell from a roof", "é"])
        == "2 distinct values of 1 to 16 characters: letters, blanks"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_order_titles_and_encodings(tmp_path: Path, encoding: str) -> None:
    """Order of the file, columns in any order and case, blank lines passed over."""
    path = tmp_path / "list.csv"
    text = 'Title ,CODE,level\n"Cuts, “deep”",132,3\n\nÉcrasement,0111 ,3\n'
    path.write_bytes(text.encode(encoding))
    assert read_codelist(path) == (Code("132", "Cuts, “deep”"), Code("0111", "Écrasement"))


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", of_kind("empty-file")),
        (
            b"code,words\n1,a\n",
            of_kind("no-code-columns", column="title", saying="'code', 'words'"),
        ),
        (b"code,code,title\n1,1,a\n", of_kind("no-code-columns", column="code")),
        (b"code,title\n", of_kind("only-a-header")),
        (b"code,title\n1,a\n", of_kind("too-few-codes", saying="1")),
        (b"code,title\n1,a\n ,b\n", of_kind("too-few-codes", saying=("1 codes", "1 rows"))),
        (b"code,title,parent\n1,a,2\n1,b,3\n", of_kind("two-parents", row=2)),
        (
            (
                b"He fell from a roof and broke 2 ribs and hit himself on the head as he said "
                b"later\n1\n"
            ),
            of_kind("no-code-columns", saying="not named"),
        ),
        (b"code,title\n1,a,b\n", of_kind("field-count", row=1, saying=(3, 2))),
        (b'code,title\n1,"a\n2,b\n', of_kind("open-quote", row=1)),
        (b"code,title\n1,a\0\n", of_kind("nul-in-header")),
        (b"code,title\n1,\x81\n2,b\n", of_kind("not-in-cp1252")),
        (b"code,title\n" + b"x" * 121 + b",a\n2,b\n", of_kind("code-too-long", saying="120")),
    ],
)
def test_faults(tmp_path: Path, content: bytes, refusal: of_kind) -> None:
    """Each is refused with the file and the row or column."""
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, check=refusal) as caught:
        read_codelist(path)
    assert str(path) in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("Seq. No.,2017 NAICS US   Code,2017 NAICS US Title,level", ()),
        ("Order,Code,Description,level", ()),
        ("no,Code APE,Libellé,level", ()),
        ("no,  soc ,Words of it,level", ("SOC", "words of it")),
    ],
)
def test_published_lists_have_columns_of_other_names(
    tmp_path: Path, header: str, columns: tuple[str, ...]
) -> None:
    """NAICS', NACE's and NAF's own names are found by their words; others are named."""
    path = tmp_path / "list.csv"
    path.write_text(f"{header}\n1,0111,Oil seeds,2\n2,0112,Rice,2\n")
    assert read_codelist(path, columns=columns) == (Code("0111", "Oil seeds"), Code("0112", "Rice"))


def test_an_index_joins_the_titles_of_a_code(tmp_path: Path) -> None:
    """Each once, in the order of the list, at the place of the code's first row."""
    path = tmp_path / "index.csv"
    path.write_text("code,title\n1,Amputations\n2,Cuts\n1,Loss of a limb\n1,Amputations\n")
    assert read_codelist(path) == (Code("1", "Amputations; Loss of a limb"), Code("2", "Cuts"))


def test_oiics_list(shared_data: Path) -> None:
    codes = read_codelist(shared_data / "oiics201_nature.csv")
    assert len(codes) == 615
    assert codes[0] == Code("1", "TRAUMATIC INJURIES AND DISORDERS")
    assert Code("1972", "Soreness, pain, hurt—nonspecified injury") in codes


def test_words_of_a_code_in_its_place(tmp_path: Path) -> None:
    """Title, description, then the levels above it, the nearest first; a title that levels share
    once; nothing for a code of which the list says nothing, though its level above has a title.
    """
    path = tmp_path / "list.csv"
    path.write_text(
        "code,title,Description\n1,INJURIES,\n11,Bones,bones and nerves\n"
        "111,Fractures,\n1110,Fractures,\n119,,\n2,Ill,\n"
    )
    codes = read_codelist(path)
    assert codes[1] == Code("11", "Bones", "bones and nerves")
    assert describe(codes)[1:3] == ["Bones. bones and nerves", "Fractures"]
    assert describe_with_levels(codes) == [
        *("INJURIES", "Bones. bones and nerves. INJURIES", "Fractures. Bones. INJURIES"),
        *("Fractures. Bones. INJURIES", "", "Ill"),
    ]
    assert [set(code.as_json()) for code in codes[:2]] == [
        {"code", "title"},
        {"code", "title", "description"},
    ]


def test_a_title_in_a_sentence() -> None:
    """As a narrative would say it: no capital, except for abbreviations; a code without a title
    says nothing.
    """
    codes = [
        Code(code="1", title="Cuts, lacerations"),
        Code(code="2", title="HIV infection"),
        Code(code="3", title=""),
    ]
    assert describe_in_sentence(codes, "A man had {}.") == [
        "A man had cuts, lacerations.",
        "A man had HIV infection.",
        "",
    ]


PUBLISHED = {
    "OIICS": ("code,title,level\n1,Invented injuries,1\n11,Invented bones,2\n", (), ["1", "11"]),
    "NAICS": (
        "Seq. No.,2022 NAICS US   Code,2022 NAICS US Title,,\n,,,,\n1,11,Invented "
        "farming,,\n2,111,Invented crops,,\n"
        "3,31-33,Invented making,,\n",
        (),
        ["11", "111", "31-33"],
    ),
    "SOC": (
        "Invented Bureau,,,\n2018 SOC Definitions,,,\n,,,\nSOC Group,SOC Code,SOC Title,SOC "
        "Definition\n"
        "Major,11-0000,Invented managers,\nDetailed,11-1011,Invented chiefs,Invent things.\n",
        (),
        ["11-0000", "11-1011"],
    ),
    "NACE": (
        (
            "Order,Level,Code,Parent,Description,This item includes\n1,1,A,,Invented "
            "farming,\n2,2,01,A,Invented crops,x\n"
        ),
        (),
        ["A", "01"],
    ),
    "ISCO": (
        (
            "Level,ISCO 08 Code,Title EN,Definition\n1,1,Invented managers,\n4,1111,Invented "
            "chiefs,Invent things.\n"
        ),
        (),
        ["1", "1111"],
    ),
    "ESCO": (
        "conceptType,conceptUri,iscoGroup,code,preferredLabel,altLabels,description\n"
        "Occupation,http://a,2654,2654.1,invented "
        "lead,,leads\nOccupation,http://b,2654,2654.2,invented aide,,aids\n",
        ("code", "preferredLabel"),
        ["2654.1", "2654.2"],
    ),
}


@pytest.mark.parametrize(("content", "columns", "codes"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_layouts_are_taken(
    tmp_path: Path, content: str, columns: tuple[str, ...], codes: list[str]
) -> None:
    """As docs/how-to/prepare-data.md says, with invented rows: each has its codes and titles."""
    (tmp_path / "list.csv").write_text(content)
    read = read_codelist(tmp_path / "list.csv", columns=columns)
    assert [code.code for code in read] == codes
    assert all(code.title.casefold().startswith("invented") for code in read)
