"""What is said of narratives before they are read by a model: their language, and
how many it cuts.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from storage.narrative_look import NarrativeLook, language_note, long_note, look_at, look_at_texts
from storage.tables.reader import open_table

FRENCH = "le salarié est tombé de l'échelle et a été blessé à la main par une machine"


def look(path: Path, texts: list[str]) -> NarrativeLook:
    path.write_text("text\n" + "\n".join(f'"{text}"' for text in texts), encoding="utf-8")
    return look_at(open_table(path, ["text"]), ["text"])


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("word " * 126, False),
        ("word " * 127, True),
        ("aaa, " * 70, True),
        ("\u5de5" * 126, False),
        ("\u5de5" * 127, True),
        ("worddd" * 100, False),
    ],
)
def test_narratives_that_an_encoder_cuts(tmp_path: Path, text: str, *, cut: bool) -> None:
    """By words and signs, each a token or more, and two tokens around them."""
    seen = look(tmp_path / "in.csv", [text, "short", ""])
    assert (seen.narratives, seen.longer_than(128)) == (2, int(cut))
    assert bool(said := long_note(seen, 128, characters=None)) == cut
    assert "single words" not in said
    words = long_note(seen, 128, characters=32_768)
    assert ("single words are read up to 32,768 characters" in words) == cut
    assert not long_note(seen, None, characters=32_768)
    assert seen.longer_than(512) == 0


def test_a_language_that_a_model_does_not_read(tmp_path: Path) -> None:
    seen = look(tmp_path / "in.csv", [FRENCH] * 20)
    assert "french" in language_note(seen, "english", "english")
    assert "french" in language_note(seen, None, "english"), "its stems are English"
    assert not language_note(seen, "french", None)
    assert not language_note(look(tmp_path / "few.csv", ["le salarié"]), "english", None)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (FRENCH, "french"),
        ("Der Mitarbeiter fiel von der Leiter und brach sich das linke Handgelenk.", "german"),
        ("El empleado se cayó de una escalera y se rompió la muñeca izquierda.", "spanish"),
        ("Рабочий упал с лестницы.", "russian"),
        ("作業員がはしごから落ちた。", "japanese"),
        ("工人从梯子上摔下来。", "chinese"),
        ("Employee fell from a ladder and broke his left wrist.", "english"),
        ("EMP PAINTING @ JOBSITE, FX L WRIST", None),
        ("μ 5 mm, Ω 3", None),
        ("Dr. de la Cruz saw him", None),
        ("", None),
    ],
)
def test_the_language_of_a_single_text(text: str, language: str | None) -> None:
    """A sentence tells it; abbreviations, signs and names are of none."""
    assert look_at_texts([text]).language == language


def test_single_texts_are_looked_at_as_those_of_a_table(tmp_path: Path) -> None:
    texts = [FRENCH, "工人 " * 90, "", "short", "word " * 127]
    alone, of_table = look_at_texts(texts), look(tmp_path / "in.csv", texts)
    assert (alone.narratives, alone.language) == (of_table.narratives, of_table.language)
    assert alone.lengths.tolist() == of_table.lengths.tolist()


def test_a_single_text_imports_no_pandas() -> None:
    """That is a second before the first answer."""
    code = (
        "import sys; from storage.narrative_look import look_at_texts; "
        "assert look_at_texts(['Employee fell.']).narratives == 1; "
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
