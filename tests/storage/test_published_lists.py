"""Code lists as they are published: read as they are, or refused with the command that makes a
table of them; what is no code is left out and counted.
"""

from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from workbooks import workbook

from storage.codelist import Code, read_codelist, read_list
from storage.errors import InputError
from storage.list_formats import concepts_of, published_form
from storage.skos import import_codes
from storage.tables.options import ReadOptions

CODES = (Code("111", "Fractures"), Code("132", "Cuts"))
TABLE = "Code,Title\n111,Fractures\n132,Cuts\n"


def written(folder: Path, content: str | bytes, name: str = "list.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "footer",
    [
        '"Source: the office, 2024",\n',
        "Source: the office, 2024\n",
        "Note: codes of four digits are new,\n",
        "TOTAL,\n",
        "Total,All injuries\n",
        "}}}},\n",
        ",\n---,\n",
        "© The office 2024,\n",
        "Last updated 2024-01-01,\n",
        "1) provisional figures,\n",
    ],
)
def test_rows_that_are_no_codes(tmp_path: Path, footer: str) -> None:
    read = read_list(written(tmp_path, TABLE + footer))
    assert read.codes == CODES
    assert len(read.notes) == 1, "they are counted"


@pytest.mark.parametrize(
    "row", ["9,Total knee replacement\n", "Note,A musical note\n", "S 72,Femur\n"]
)
def test_codes_that_look_like_footers_stay(tmp_path: Path, row: str) -> None:
    assert len(read_list(written(tmp_path, TABLE + row)).codes) == 3


def test_headings_without_a_code(tmp_path: Path) -> None:
    """As ICD-11's chapters, whose titles begin with the dashes of their depth."""
    text = "Code,BlockId,Title\n,Block1,Injuries\n111,,- Fractures\n132,,- - Cuts\n"
    read = read_list(written(tmp_path, text))
    assert read.codes == CODES
    assert "1 headings without a code" in read.notes[0]


LEVELS = [
    ("SOC 2020", "", "", ""),
    ("Major Group", "Unit Group", "Group Title", "Group Description"),
    ("2", "", "Professionals", ""),
    ("", "2231", "Nurses", ""),
    ("", "2232", "Midwives", ""),
]
TOLD = (Code("2", "Professionals"), Code("2231", "Nurses"), Code("2232", "Midwives"))


def test_a_column_for_each_level(tmp_path: Path) -> None:
    path = written(tmp_path, workbook(LEVELS), "list.xlsx")
    assert read_codelist(path) == TOLD
    assert read_codelist(path, columns=["Major Group", "Unit Group", "Group Title"]) == TOLD


def test_titles_that_stand_right_of_their_codes(tmp_path: Path) -> None:
    """As in ANZSCO, where each level begins a column further right."""
    rows = [
        ("Group", "", "", ""),
        ("Major", "Sub-major", "Minor", ""),
        ("2", "Professionals", "", ""),
        ("", "2231", "Nurses", ""),
        ("", "2232", "Midwives", ""),
    ]
    assert read_codelist(written(tmp_path, workbook(rows), "list.xlsx")) == TOLD


def test_a_workbook_with_a_sheet_of_contents(tmp_path: Path) -> None:
    """The only sheet with codes and titles is taken, and another by an option for the list."""
    path = written(tmp_path, workbook([("Contents",), ("Table 1",)], LEVELS), "list.xlsx")
    read = read_list(path)
    assert read.codes == TOLD
    assert "'S2'" in read.notes[0]
    path = written(tmp_path, workbook(LEVELS, LEVELS[:-1]), "list.xlsx")
    with pytest.raises(InputError, check=of_kind("several-sheets"), match=r"'S1', 'S2'"):
        read_list(path)
    assert read_list(path, read=ReadOptions(sheet="S2")).codes == TOLD[:2]


PLAIN = [("111", "Fractures"), ("132", "Cuts")]
FINE = [("S52501A", "Fracture, right"), ("T23001A", "Burn, hand")]
ORDER = "".join(f"{n:05} {code:7} 1 {title:60} {title}\n" for n, (code, title) in enumerate(FINE))
WHO = "".join(
    f"4;T;X;19;S50;{code};{code};{code.replace('.', '')};{title};Group;{title};;9-999;1-101;2-1;3-1;4-1\n"
    for code, title in [("S52.0", "Fracture"), ("T23.0", "Burn")]
)


@pytest.mark.parametrize(
    ("content", "codes", "options"),
    [
        (ORDER, FINE, {}),
        ("S52501A Fracture, right\nT23001A Burn, hand\n", FINE, {}),
        (WHO, [("S52.0", "Fracture"), ("T23.0", "Burn")], {}),
        ("111,Fractures\n132,Cuts\n", PLAIN, {}),
        ("x;111;Fractures\ny;132;Cuts\n", PLAIN, {"names": ("a", "code", "title")}),
        ("111 Fractures\n132 Cuts\n", PLAIN, {"widths": (4, 60), "names": ("code", "title")}),
        (
            "cod title\n111 Brûlé\n132 Été\n",
            [("111", "Brûlé"), ("132", "Été")],
            {"widths": (4, 60)},
        ),
    ],
    ids=[
        "ICD-10-CM's order",
        "ICD-10-CM's codes",
        "WHO",
        "two columns",
        "names",
        "widths",
        "header",
    ],
)
def test_lists_without_a_header_and_of_fixed_widths(
    tmp_path: Path, content: str, codes: list[tuple[str, str]], options: dict[str, Any]
) -> None:
    columns = ["cod", "title"] if content.startswith("cod ") else []
    path = written(tmp_path, content, "list.txt")
    read = read_codelist(path, columns=columns, read=ReadOptions.model_validate(options))
    assert read == tuple(Code(*code) for code in codes)


TURTLE = "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n<urn:1> a skos:Concept .\n"
CLAML = """<?xml version="1.0"?><!DOCTYPE ClaML SYSTEM "ClaML.dtd"><ClaML version="2.0.0">
<Class code="I" kind="chapter"><Rubric kind="preferred"><Label xml:lang="en">Injuries</Label></Rubric></Class>
<Class code="S52" kind="category"><SuperClass code="I"/><Rubric kind="preferred">
<Label xml:lang="en">Fracture of <Term>forearm</Term></Label></Rubric></Class></ClaML>"""
SDMX = """<mes:Structure xmlns:mes="http://www.sdmx.org/resources/sdmxml/schemas/v2_1/message" xmlns:s="urn:s"
xmlns:c="urn:c"><s:Codelist id="CL"><c:Name xml:lang="en">List</c:Name>
<s:Code id="I"><c:Name xml:lang="en">Injuries</c:Name><c:Name xml:lang="fr">Blessures</c:Name></s:Code>
<s:Code id="S52"><c:Name xml:lang="en">Fracture of forearm</c:Name><s:Parent><Ref id="I"/></s:Parent></s:Code>
</s:Codelist></mes:Structure>"""
FHIR = """{"resourceType": "CodeSystem", "url": "urn:list", "language": "en", "concept": [
{"code": "I", "display": "Injuries", "concept": [{"code": "S52", "display": "Fracture of forearm"}]}]}"""


@pytest.mark.parametrize(
    ("content", "name", "form"),
    [
        (TURTLE, "list.ttl", "RDF"),
        ("<urn:1> <urn:2> <urn:3> .\n", "list.nt", "RDF"),
        ('<rdf:RDF xmlns:rdf="x">', "list.rdf", "RDF"),
        (CLAML, "list.xml", "ClaML"),
        (SDMX, "list.xml", "SDMX"),
        (FHIR, "list.json", "FHIR"),
    ],
)
def test_forms_that_are_no_tables_are_named(
    tmp_path: Path, content: str, name: str, form: str
) -> None:
    """With the command that makes a table of them."""
    path = written(tmp_path, content, name)
    assert published_form(path) == form
    with pytest.raises(
        InputError, check=of_kind("not-a-table", saying=(form, f"autocoder codelist {name}"))
    ):
        read_codelist(path)


@pytest.mark.parametrize("content", [CLAML, SDMX, FHIR], ids=["ClaML", "SDMX", "FHIR"])
def test_claml_sdmx_and_fhir_are_made_tables(tmp_path: Path, content: str) -> None:
    made = import_codes(written(tmp_path, content, "list.xml"), language="en")
    assert made.rows == [("I", "Injuries", "", ""), ("S52", "Fracture of forearm", "", "I")]


def test_xml_that_has_entities_is_refused(tmp_path: Path) -> None:
    text = CLAML.replace('"ClaML.dtd"', '"ClaML.dtd" [<!ENTITY a "b">]')
    with pytest.raises(InputError, check=of_kind("entities")):
        concepts_of(written(tmp_path, text, "list.xml"), "ClaML")


@pytest.mark.parametrize(
    ("name", "content", "codes"),
    [
        ("cbo2002.csv", "CODIGO;TITULO\n010105;Oficial\n784205;Alimentador\n", ["010105", "784205"]),
        ("scian.csv", "C\xf3digo,T\xedtulo\n11,Agricultura\n111,Cultivo\n", ["11", "111"]),
        ("kldb.csv", '"KldB 2010 (5-Steller)";"Titel"\n"Anhang";""\n"01104";"a"\n"11101";"b"\n',
         ["01104", "11101"]),
        ("ateco.csv", '"Codice Ateco 2007\nnuovo",Titolo Ateco\nA,a\n01.11.10,b\n', ["A", "01.11.10"]),
        ("esco.csv", "conceptUri,iscoGroup,preferredLabel,altLabels,code\nu,2166,artist,a,2166.1\n"
         "v,2166,designer,d,2166.2\n", ["2166.1", "2166.2"]),
        ("pt.asc", "10000081$Abdominal pain$$10017947$$$$$$$\n10028813$Nausea$$10017947$$$$$$$\n",
         ["10000081", "10028813"]),
    ],
)  # fmt: skip
def test_lists_in_the_words_of_their_offices(
    tmp_path: Path, name: str, content: str, codes: list[str]
) -> None:
    """CBO, SCIAN, KldB, ATECO and MedDRA; a word without a title is no code among numbers."""
    (tmp_path / name).write_text(content)
    assert [code.code for code in read_codelist(tmp_path / name)] == codes


def test_titles_in_several_languages(tmp_path: Path) -> None:
    """Those in English are taken, as the encoder reads them; without such they are to be named."""
    file = tmp_path / "cn.csv"
    file.write_text("CN_CODE,PARENT,NAME_DE,NAME_EN\n01,,Tiere,Animals\n0101,01,Pferde,Horses\n")
    assert [code.title for code in read_codelist(file)] == ["Animals", "Horses"]
    file.write_text("CN_CODE,NAME_DE,NAME_FR\n01,Tiere,Animaux\n02,Fleisch,Viande\n")
    with pytest.raises(InputError, check=of_kind("no-code-columns", column="title")):
        read_codelist(file)


def test_a_code_and_a_name_for_each_level(tmp_path: Path) -> None:
    """UNSPSC: every level is a code of the list once, under the one before it."""
    file = tmp_path / "unspsc.csv"
    file.write_text(
        "Segment,Segment Name,Family,Family Name\n10000000,Live,10100000,Animals\n"
        "10000000,Live,10150000,Seeds\n11000000,Minerals,11100000,Earth\n"
    )
    found = {code.code: (code.title, tuple(code.above)) for code in read_codelist(file)}
    assert found == {
        "10000000": ("Live", ()),
        "10100000": ("Animals", ("Live",)),
        "10150000": ("Seeds", ("Live",)),
        "11000000": ("Minerals", ()),
        "11100000": ("Earth", ("Minerals",)),
    }


def test_a_list_of_fixed_widths_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hcpcs.txt"
    file.write_text("A0021001003Ambulance service\nA0080001003Transportation\n")
    with pytest.raises(
        InputError, check=of_kind("no-code-columns", saying="--read-codelist 'widths=[5,60]'")
    ):
        read_codelist(file)
