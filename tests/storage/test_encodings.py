"""Texts in other encodings than UTF-8 and cp1252: named where cp1252 cannot be right, and letters
that were encoded twice are counted.
"""

from pathlib import Path

import pytest

from storage.errors import InputError
from storage.tables.options import ReadOptions
from storage.tables.reader import open_table

TEXTS = {
    "cp1250": {
        "czech": "pracovník řezal prst nožem a spadl ze žebříku",
        "polish": "pracownik spadł z drabiny i złamał rękę są świadkowie",
        "hungarian": "a dolgozó leesett a létráról törött csontja erősen fáj nő ült mellette",
        "romanian": "muncitorul a căzut de pe scară și şi-a fracturat mâna".replace("ș", "ş"),
        "croatian": "radnik je pao s ljestava i slomio ruku liječnik žurno došao čaša",
    },
    "cp1251": {"russian": "рабочий упал с лестницы и сломал руку", "bulgarian": "падна от стълба"},
    "koi8-r": {"russian": "рабочий упал с лестницы и сломал руку"},
    "cp1253": {"greek": "ο εργάτης έπεσε από τη σκάλα και έσπασε το χέρι"},
    "cp1254": {"turkish": "işçi yüksekten düştü ve kolunu kırdı ağır yaralandı"},
    "shift_jis": {"japanese": "作業員がはしごから落ちて腕を骨折した"},
    "gb18030": {"chinese": "工人从梯子上摔下来摔断了胳膊"},
}
KINDS = {name: {"another-script"} for name in TEXTS} | {
    "cp1250": {"signs-inside-words", "central-european-letters"},
    "cp1254": {"turkish-letters"},
    "shift_jis": {"not-in-cp1252"},
}
FOREIGN = [(code, name) for code, texts in TEXTS.items() for name in texts]
WESTERN = {
    "french": "l'ouvrier est tombé de l'échelle, œdème à la cheville, où ça, naïf",
    "german": "der Arbeiter stürzte von der Leiter, Füße gequetscht, größer",
    "spanish": "¿cómo? el obrero cayó de la escalera, niño, 2ª planta, 3º",
    "portuguese": "o operário caiu da escada, fraturou a mão, avós, põe",
    "swedish": "arbetaren föll från stegen på fabriken och bröt armen",
    "norwegian": "arbeideren falt fra stigen på fabrikken, øye skadet, æsj",
    "icelandic": "maðurinn féll úr stiganum, þá brotnaði höndin, ýtti, æð",
    "finnish": "työntekijä putosi tikkailta, käsi murtui",
    "signs": "a board of 3 m³ fell, ½ inch, 20 °C – “hot”, 5 µg, £5, café",
}


def written(path: Path, text: str, encoding: str) -> Path:
    rows = "\n".join(f"{text} {n},111" for n in range(20))
    path.write_bytes(f"text,code\n{rows}\n".encode(encoding))
    return path


@pytest.mark.parametrize(("encoding", "language"), FOREIGN)
def test_what_cp1252_misreads_is_refused(tmp_path: Path, encoding: str, language: str) -> None:
    """With an encoding that may be right among those named, in most cases; and it
    reads the file.
    """
    text = TEXTS[encoding][language]
    path = written(tmp_path / "in.csv", text, encoding)
    with pytest.raises(InputError) as said:
        open_table(path, ["text"])
    assert said.value.kind in KINDS[encoding]
    assert "encoding=" in str(said.value)
    assert text[:20] not in str(said.value)
    table = open_table(path, ["text"], read=ReadOptions(encoding=encoding))
    assert next(table.text_rows(["text"])) == (f"{text} 0",)


@pytest.mark.parametrize("language", WESTERN)
def test_the_languages_of_cp1252_are_read(tmp_path: Path, language: str) -> None:
    path = written(tmp_path / "in.csv", f'"{WESTERN[language]}"', "cp1252")
    path.write_bytes(path.read_bytes().replace(b'" ', b" ").replace(b",111\n", b'",111\n'))
    assert open_table(path, ["text"]).source.encoding == "cp1252"


@pytest.mark.parametrize("text", ["café", "d’une échelle", "Größe", "падна", "naïve – “so”"])
def test_letters_that_were_encoded_twice(tmp_path: Path, text: str) -> None:
    """Counted in the line on how the file was read; the same text encoded once is not."""
    twice = text.encode().decode("cp1252", errors="replace").replace("\ufffd", "")
    reading = open_table(written(tmp_path / "in.csv", twice, "utf-8"), ["text"]).reading
    assert "and saved again" in reading[0]
    once = open_table(written(tmp_path / "in.csv", text, "utf-8"), ["text"]).reading
    assert "and saved again" not in once[0]
