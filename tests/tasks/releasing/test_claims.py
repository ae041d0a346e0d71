"""What reached a release without protection: told by how the records were sampled, labelled and
dated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ingested import ingested

from mechanisms.model.config import ModelConfig
from mechanisms.privacy import numerics
from storage import figures
from storage.demo_data import write_demo_data
from tasks.bundle.sentences import AUDITED, COUPLED
from tasks.fitting.ingest import ingest_figures, ingest_records
from tasks.parameters import DataParameters
from tasks.releasing.claims import (
    COHORTS,
    LABELS,
    NUMBER,
    SETTINGS,
    WEIGHTS,
    public_inputs,
    unprotected_inputs,
)
from tasks.running.stage import Context, run_step

FACTS = ingested()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"sampling": "stratified"}, COUPLED),
        ({"label_space_source": "observed"}, LABELS),
        ({"cohorts_source": "records"}, COHORTS),
    ],
)
def test_each_is_listed_where_it_holds(changed: dict[str, Any], line: str) -> None:
    """And only there."""
    assert line not in unprotected_inputs(FACTS, weights=False)
    assert line in unprotected_inputs(ingested(**changed), weights=False)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, {COUPLED, COHORTS}),
        ({"sampling": "per-record", "cohorts": ["2021", "2022", "2023", "2024"]}, set()),
        ({"sampling": "per-record", "cohort": "none"}, set()),
    ],
)
def test_the_ingest_tells_them(tmp_path: Path, options: dict[str, Any], lines: set[str]) -> None:
    """From the stage's own figures, which a plan is held against."""
    written = write_demo_data(tmp_path, records=120, seed=3)
    data = {"source": str(written.csv), "codelist": str(written.codelist), "ingest": options}
    context = Context(home=str(tmp_path / "home"), device="cpu")
    context.workspace.create()
    dataset = run_step(context, ingest_records(DataParameters.model_validate(data)))
    facts = ingest_figures(context.store, dataset)
    assert set(unprotected_inputs(facts, weights=False)) == lines | {NUMBER, SETTINGS, AUDITED}


def test_weights_are_listed_where_there_are_any() -> None:
    """A formal branch has none."""
    assert WEIGHTS in unprotected_inputs(FACTS)
    assert WEIGHTS not in unprotected_inputs(FACTS, weights=False)


def test_what_is_public_is_named() -> None:
    """Titles; nothing where a head starts at random. Sentence and scale are hyperparameters, which
    someone may have chosen by looking at the records: they stand with those, word for word, and are
    not called public.
    """
    titled = ModelConfig(
        prior="titles", pooling="mean", prior_sentence="Someone had {}.", prior_scale=16
    )
    (line,) = public_inputs(titled)
    assert line.startswith("the titles of the codes, with the levels above")
    assert "Someone had" not in line
    (settings,) = set(unprotected_inputs(FACTS, model=titled)) - set(
        unprotected_inputs(FACTS, model=ModelConfig())
    )
    assert (
        "the sentence that titles are read in (`Someone had {}.`) and their scale (16), if someone "
        "chose them"
    ) in settings
    bare = unprotected_inputs(FACTS, model=titled.model_copy(update={"prior_sentence": ""}))[-2]
    assert bare.startswith("the scale of the titles (16)")
    assert public_inputs(ModelConfig()) == ()
    worded = {"trainable": "head", "pooling": "mean"}
    assert (
        "vocabulary" in public_inputs(ModelConfig.model_validate(worded | {"lexical": "titles"}))[0]
    )
    of_injuries = worded | {"lexical": "titles", "lexical_titles": "injuries"}
    assert "titles of OIICS 2.01" in public_inputs(ModelConfig.model_validate(of_injuries))[0]
    assert (
        "synthetic narratives"
        in public_inputs(ModelConfig.model_validate(worded | {"lexical": "hashed"}))[0]
    )
    assert (
        len(
            public_inputs(
                ModelConfig.model_validate(worded | {"lexical": "titles", "prior": "titles"})
            )
        )
        == 2
    )


def test_a_claim_spells_epsilon_as_every_page_does() -> None:
    """Four decimals, rounded up, by the formulas of both packages."""
    for value in (11.52109, 5.0, 0.00001, 8.05908, 100.0):
        assert numerics.epsilon_text(value) == figures.epsilon_text(value)
