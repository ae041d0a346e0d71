"""The public prior as a stage: keyed by list and encoder, found by anyone who builds a head,
refused early.
"""

import csv
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import torch
from refusals import of_kind
from torch import nn

from mechanisms.model.config import ModelConfig
from mechanisms.prior_descent import NOISE_AT_EXAMPLES, PriorDescent
from storage.code_levels import describe_with_levels
from storage.codelist import Code, read_codelist
from storage.datasets import load_codes
from storage.errors import InputError
from tasks.branches.branch import mechanism_for, model_for
from tasks.branches.released import released_branch
from tasks.fitting import prior
from tasks.fitting.ingest import ingest_records
from tasks.fitting.model_inputs import build
from tasks.parameters import DataParameters, RetrainParameters
from tasks.releasing import preflight
from tasks.retraining.run import dry_run
from tasks.running.stage import Context, run_step


def model(encoder: Path, **how: object) -> ModelConfig:
    return ModelConfig.model_validate(
        {
            "encoder": str(encoder),
            "trainable": "head",
            "pooling": "mean",
            "max_length": 32,
            "prior": "titles",
        }
        | how
    )


def test_the_untrained_head_is_the_titles(tiny_bert: Path, tmp_path: Path) -> None:
    """Whatever the seed, and in both trainable parts that have a linear head; without a prior seeds
    differ.
    """
    context, data = (
        tiny_jobs.workspace(tmp_path),
        tiny_jobs.demo(tmp_path / "data", 120, population="demo"),
    )
    records = DataParameters.model_validate(data)
    dataset = run_step(context, ingest_records(records)).path

    def head(seed: int, **how: object) -> torch.Tensor:
        part = build(context, model(tiny_bert, **how), dataset, seed=seed).whole.head
        assert isinstance(part, nn.Linear)
        return part.weight.detach().clone()

    codes = read_codelist(Path(data["codelist"]))
    assert head(1).shape[0] == len(codes)
    assert torch.equal(head(1), head(2))
    assert torch.equal(head(1), head(1, trainable="full"))
    assert not torch.equal(head(1, prior="none"), head(2, prior="none"))
    (step,) = prior.stages(model(tiny_bert), records)
    assert step.find(context.store) is not None, "what a builder computed is what a run plans"


def test_observed_codes_start_where_they_would_in_the_whole_list(
    tiny_bert: Path, tmp_path: Path
) -> None:
    """A list that is cut to the codes that records have tells each of them the same; no run embeds
    the others.
    """
    data = tiny_jobs.demo(
        tmp_path / "data", 120, population="demo", ingest={"label_space": "observed"}
    )
    context, records = tiny_jobs.workspace(tmp_path), DataParameters.model_validate(data)
    dataset = run_step(context, ingest_records(records)).path
    codes, listed = load_codes(dataset), read_codelist(Path(data["codelist"]))
    assert len(codes) < len(listed), "or this shows nothing"
    whole = dict(zip([code.code for code in listed], describe_with_levels(listed), strict=True))
    assert describe_with_levels(codes) == [whole[code.code] for code in codes]
    assert prior.stages(model(tiny_bert), records) == []
    part = build(context, model(tiny_bert), dataset, seed=1).whole.head
    assert isinstance(part, nn.Linear)
    assert part.weight.shape[0] == len(codes)
    assert part.weight.norm(dim=1).min() > 0


def test_a_list_is_embedded_as_the_records_read_it(tiny_bert: Path, tmp_path: Path) -> None:
    """Of a list without a header both read every line, and its titles by the settings' columns."""
    data = tiny_jobs.demo(tmp_path / "data", 120, population="demo")
    listed = read_codelist(Path(data["codelist"]))
    bare = tmp_path / "bare.csv"
    with bare.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows((at, one.title, one.code) for at, one in enumerate(listed))
    data["codelist"] = str(bare)
    data["ingest"] = {
        "codelist_read": {"names": ("number", "words", "key")},
        "codelist_columns": ("key", "words"),
    }
    context, records = tiny_jobs.workspace(tmp_path), DataParameters.model_validate(data)
    codes = load_codes(run_step(context, ingest_records(records)).path)
    assert {code.code for code in codes} == {one.code for one in listed}
    (step,) = prior.stages(model(tiny_bert), records)
    assert step.key(context.store) == prior.titles(model(tiny_bert), codes).key(context.store)


def test_the_key_is_the_lists_and_the_encoders(
    tiny_bert: Path, tiny_roberta: Path, tmp_path: Path
) -> None:
    """Another title, sentence, encoder or length is another stage; beta and the trainable part are
    not.
    """
    store = Context(home=str(tmp_path)).store
    codes = [Code("1", "INJURIES"), Code("11", "Fractures")]

    def key(encoder: Path, listed: list[Code], **how: object) -> str:
        return prior.titles(model(encoder, **how), listed).key(store)

    same = key(tiny_bert, codes)
    assert key(tiny_bert, codes, prior_scale=9.0) == key(tiny_bert, codes, trainable="full") == same
    others = [key(tiny_bert, [*codes[:1], Code("11", "Burns")]), key(tiny_roberta, codes)]
    others += [
        key(tiny_bert, codes, max_length=16),
        key(tiny_bert, codes, prior_sentence="Someone had {}."),
    ]
    assert len({same, *others}) == 5


def test_what_has_no_titles_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    """A list without any title, and a run without a list, before work starts."""
    with pytest.raises(InputError, check=of_kind("no-titles")):
        prior.titles(model(tiny_bert), [Code("1"), Code("2")])
    without: dict[str, Any] = {
        "data": {"source": "x.csv", "ingest": {}},
        "model": {"pooling": "mean", "prior": "titles"},
    }
    with pytest.raises(InputError, check=of_kind("prior-without-list")):
        preflight.check(
            Context(home=str(tmp_path), device="cpu"), RetrainParameters.model_validate(without), {}
        )
    without["model"] = {"trainable": "head", "pooling": "mean", "lexical": "titles"}
    with pytest.raises(InputError, check=of_kind("lexicon-without-list")):
        preflight.check(
            Context(home=str(tmp_path), device="cpu"), RetrainParameters.model_validate(without), {}
        )


def test_a_head_starts_at_a_coding_index(tiny_bert: Path, tmp_path: Path) -> None:
    """Every seed at the same rows, found once; the plan's model names the index by its digest, and
    without one the model is the same as ever.
    """
    context = tiny_jobs.workspace(tmp_path)
    data = tiny_jobs.demo(tmp_path / "data", 120, population="demo")
    codes = read_codelist(Path(data["codelist"]))
    index = tmp_path / "index.csv"
    rows = [f"case {n} of {code.title.lower()}" for n in range(3) for code in codes]
    with index.open("w", newline="", encoding="utf-8") as file:
        names = [code.code for code in codes] * 3
        csv.writer(file).writerows([("text", "code"), *zip(rows, names, strict=True)])
    parameters = tiny_jobs.retrain(
        data | {"examples": str(index)}, tiny_bert, model={"prior": "titles"}
    )
    method, _ = released_branch(parameters)
    started = model_for(method, parameters)
    assert started.prior_examples == parameters.data.coding_index.digest  # pyrefly: ignore
    plain = tiny_jobs.retrain(data, tiny_bert, model={"prior": "titles"})
    assert "prior_examples" not in model_for(method, plain).model_dump(mode="json")
    assert "examples" not in plain.data.model_dump(mode="json")
    with_index, without = (ingest_records(each.data) for each in (parameters, plain))
    assert with_index.config != without.config
    dataset = run_step(context, with_index).path
    steps = prior.stages(started, parameters.data)
    assert [step.name for step in steps] == ["titles", "titles", "public-start"]
    assert not any(step.find(context.store) for step in steps)

    def head(model: ModelConfig, seed: int) -> torch.Tensor:
        part = build(context, model, dataset, seed=seed).whole.head
        assert isinstance(part, nn.Linear)
        return part.weight.detach().clone()

    assert torch.equal(head(started, 1), head(started, 2))
    assert not torch.equal(head(started, 1), head(model_for(method, plain), 1))
    assert len(list((context.workspace.private / "stages" / "public-start").iterdir())) == 1
    assert all(step.find(context.store) for step in steps), (
        "what a builder found is what is planned"
    )
    names = [step.name for step, _ in dry_run(parameters, context).steps]
    assert names[:4] == ["ingest", "titles", "titles", "public-start"]


@pytest.mark.parametrize(("settings", "noise"), [({}, None), ({"weight_noise": 0.5}, 0.5)])
def test_less_noise_for_a_head_that_starts_at_an_index(
    tiny_bert: Path, tmp_path: Path, settings: dict[str, Any], noise: float | None
) -> None:
    """Unless the noise is set, also to what it is without an index."""
    data = tiny_jobs.demo(tmp_path / "data", 120, population="demo")
    code = read_codelist(Path(data["codelist"]))[0].code
    index = tmp_path / "index.csv"
    index.write_text("text,code\n" + "".join(f"case {n},{code}\n" for n in range(20)))
    values: Any = {
        "model": {"encoder": str(tiny_bert), "trainable": "head", "pooling": "mean"}
        | {"prior": "titles"},
        "method": {"name": "prior-descent", "target_epsilon": 1, **settings},
    }
    for examples, expected in (({}, 0.5), ({"examples": str(index)}, NOISE_AT_EXAMPLES)):
        parameters = RetrainParameters.model_validate(values | {"data": data | examples})
        method, terms = released_branch(parameters)
        mechanism = mechanism_for(method, parameters, terms)
        assert isinstance(mechanism, PriorDescent)
        assert mechanism.weight_noise == (noise or expected)
