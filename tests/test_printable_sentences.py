"""The list of sentences that a page can print finds those of each kind of source."""

import pytest

from scripts.printable_sentences import ROOT, SOURCES, Printable, main, printable
from tasks.bundle.sentences import EVERY, SECTIONS

EXAMPLES = {
    "tasks/bundle/sentences.py": "The program does what its source says.",
    "tasks/pages/templates/statement.md.j2": "It is weaker than differential privacy.",
    "tasks/pages/templates/card.md.j2": "Your texts may be of another kind.",
    "tasks/pages/templates/plan_words.txt.j2": "An audit may find one.",
    "tasks/pages/templates/plan.html.j2": "What you are asked to sign",
    "tasks/releasing/promise.py": "A person with several records is protected less.",
    "deployments/branches.yaml": "hyperparameters found on training records of public OSHA",
    "service/page.html": "Narratives are neither stored nor logged.",
    "PRIVACY.md": "It is not an empirical estimate.",
    "README.md": "Training writes a *plan* and releases nothing.",
}


@pytest.fixture(scope="module")
def listed() -> list[Printable]:
    return list(printable())


@pytest.mark.parametrize(("file", "sentence"), EXAMPLES.items())
def test_a_sentence_of_each_source_is_found_on_its_line(
    listed: list[Printable], file: str, sentence: str
) -> None:
    """The line is where the passage of the sentence begins, so at most ten lines before it."""
    found = [one for one in listed if one.file == file and sentence in one.text]
    assert found, "it is on no line of the list"
    first = found[0].line - 1
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()[first : first + 10]
    assert sentence.split()[0].strip("*") in " ".join(lines)


def test_every_source_has_sentences(listed: list[Printable]) -> None:
    named = {file for files in SOURCES.values() for file in files}
    assert {one.file for one in listed} == named


def test_each_sentence_of_a_statement_has_its_standing(listed: list[Printable]) -> None:
    """All of them, once, with what they rest on; no other sentence has one."""
    told = [*EVERY, *(one for section in SECTIONS for one in section.sentences)]
    standing = [(one.text, one.standing, one.basis) for one in listed if one.standing]
    assert standing == [(one.text, one.status, one.basis) for one in told]


def test_code_and_styles_are_no_sentences(listed: list[Printable]) -> None:
    for part in ("import onnxruntime", "font-family", "addEventListener", "from autocoder import"):
        assert not [one for one in listed if part in one.text]


def test_one_page_alone_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--of", "statement"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(": statement: " in line for line in lines)
    assert any("[assumed; if it is wrong: Tests and audits can miss" in line for line in lines)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "python scripts/printable_sentences.py --of statement" in shown
    assert "would make it false" in shown
