"""A coder of a code list alone is the start of training, and says that no record made it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import torch
from csv_files import write_csv
from refusals import of_kind

from mechanisms.model import encoder_files, export
from mechanisms.model.config import ModelConfig
from storage.codelist import read_codelist
from storage.errors import InputError
from tasks.coding.untrained import UntrainedCoder, open_codelist
from tasks.fitting.ingest import ingest_records
from tasks.fitting.model_inputs import build
from tasks.parameters import DataParameters
from tasks.running.stage import run_step


def config(encoder: Path, **how: Any) -> ModelConfig:
    start = {"trainable": "head", "pooling": "mean", "prior": "titles", "lexical": "titles"}
    return ModelConfig.model_validate(
        {"encoder": str(encoder), "max_length": 32, "precision": "float32"} | start | how
    )


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    titles = {
        "111": "Fractures of the wrist",
        "132": "Cuts and lacerations of the hand",
        "152": "Burns from a hot pipe",
        "199": "Strained back from lifting a heavy box",
    }
    return write_csv(tmp_path / "list.csv", ("code", "title"), list(titles.items()))


@pytest.fixture
def opened(tiny_bert: Path, listed: Path, tmp_path: Path) -> UntrainedCoder:
    return open_codelist(listed, config(tiny_bert), home=tmp_path / "none")


def test_it_is_where_training_starts(
    tiny_bert: Path, tmp_path: Path, narratives: Callable[..., list[str]]
) -> None:
    """To the bit, in a workspace and without one; a workspace keeps the stage for the training."""
    context, data = (
        tiny_jobs.workspace(tmp_path),
        tiny_jobs.demo(tmp_path / "data", 120, population="demo"),
    )
    model, codelist = config(tiny_bert), Path(data["codelist"])
    apart = open_codelist(codelist, model, home=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    coder = open_codelist(codelist, model, home=context.workspace.home)
    kept = list((context.workspace.private / "stages" / "titles").iterdir())
    dataset = run_step(context, ingest_records(DataParameters.model_validate(data))).path
    start = build(context, model, dataset, seed=7)
    assert list((context.workspace.private / "stages" / "titles").iterdir()) == kept
    codes = tuple(code.code for code in read_codelist(codelist))
    tokenizer = encoder_files.load_tokenizer(model.encoder)
    trained = export.Released(start.releasable().eval(), tokenizer, codes, model.max_length)
    texts = narratives(10)
    for each in (coder, apart):
        assert each.model.codes == codes
        assert torch.equal(each.model.logits(texts), trained.logits(texts))


def test_it_answers_by_titles_and_is_marked(opened: UntrainedCoder) -> None:
    """A title as a narrative gets its own code; rows say the kind of the model."""
    texts = ["Burns from a hot pipe", "Cuts and lacerations of the hand", " "]
    codings = opened.code(texts, top_k=2, threshold=0.5)
    assert [coding.answers[0].code for coding in codings[:2]] == ["152", "132"]
    assert codings[2].answers == ()
    assert opened.origin["model_kind"] == opened.kind == "untrained"
    assert opened.thresholds is None
    assert isinstance(opened.model, export.Released)


def test_its_digest_is_of_all_that_decides(
    opened: UntrainedCoder, tiny_bert: Path, listed: Path, tmp_path: Path
) -> None:
    """The same list elsewhere is the same coder; another title, order or sentence another one."""

    def digest(content: str, **how: Any) -> str:
        file = tmp_path / "again.csv"
        file.write_text(content)
        return open_codelist(file, config(tiny_bert, **how), home=tmp_path / "none").digest

    content = listed.read_text()
    head, *rows = content.splitlines()
    assert digest(content) == opened.digest
    others = {
        digest(content.replace("hot pipe", "hot stove")),
        digest("\n".join([head, *reversed(rows)])),
        digest(content, prior_sentence="A worker had {}."),
    }
    assert len(others | {opened.digest}) == 4


def test_what_needs_coded_records_is_refused(opened: UntrainedCoder) -> None:
    with pytest.raises(InputError, check=of_kind("untrained-thresholds")):
        opened.threshold_for(0.9)
    with pytest.raises(InputError, check=of_kind("untrained-sets")):
        opened.with_sets(0.9)


def test_a_list_without_titles_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    numbers = write_csv(tmp_path / "numbers.csv", ("code", "title"), [("111", ""), ("132", "")])
    with pytest.raises(InputError, check=of_kind("untitled-list")):
        open_codelist(numbers, config(tiny_bert), home=tmp_path / "none")
