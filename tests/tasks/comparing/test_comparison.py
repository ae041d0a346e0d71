"""Choice of branches, aggregates of a comparison with their errors, and its one table and plot."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_jobs
from refusals import of_kind

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Task
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches.branch import ComparisonSettings, choose, mechanism_for
from tasks.comparing import results, run
from tasks.comparing.summary import BranchSummary, Difference, summarise
from tasks.fitting.scores import resampled_of
from tasks.method import standard_methods
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context, Step, run_step


def parameters(**model: Any) -> RetrainParameters:
    """A head on pooled features, except for what is given, of records without a code list."""
    head = {"trainable": "head", "pooling": "mean"} | model
    return RetrainParameters.model_validate(
        {"data": {"source": "x.csv", "ingest": {}}, "model": head}
    )


def listed(**model: Any) -> RetrainParameters:
    one = parameters(**model)
    return one.model_copy(update={"data": one.data.model_copy(update={"codelist": "codes.csv"})})


def test_the_paper_setting_is_the_papers() -> None:
    """Batch 512, rate 1e-3, clip 1, 30 epochs, AdamW, Mironov's conversion (section 3.2)."""
    task = Task(records=5346, classes=153, target_epsilon=4)
    config = (
        mechanism_for(standard_methods()["dp-sgd"], parameters(), ComparisonSettings())
        .plan(task)
        .mechanism
    )
    assert isinstance(config, DpSgd)
    assert (config.batch_size, config.learning_rate, config.l2_clip_norm, config.epochs) == (
        512,
        1e-3,
        1.0,
        30,
    )
    assert (config.optimiser, config.calibrate_by, config.delta) == ("adamw", "rdp-mironov", 1e-4)
    swept = standard_methods()["dp-sgd-delta-0.99"]
    same = swept.mechanism.model_copy(update={"delta": None})
    assert (same, swept.delta) == (standard_methods()["dp-sgd"].mechanism, 0.99)


def test_a_rival_starts_where_the_recommended_branch_starts() -> None:
    """At the titles, with settings searched there."""
    branches = standard_methods()
    rival, tuned, ours = (
        branches[name] for name in ("dp-sgd-titles", "dp-sgd-tuned", "prior-descent")
    )
    assert rival.prior == ours.prior == "titles"
    assert type(rival.mechanism) is type(tuned.mechanism)
    assert rival.mechanism != tuned.mechanism
    assert (rival.settings_tried, ours.settings_tried) == (111, 111)


def test_branches_are_chosen_by_name() -> None:
    """Each once, in the order asked for; `all` is what model and code list allow; the rest is
    refused by name.
    """
    branches = standard_methods()

    def names(text: str, given: RetrainParameters) -> list[str]:
        return [branch.name for branch in choose(text, given, branches)]

    assert names("prior-descent, dp-sgd,prior-descent", listed()) == ["prior-descent", "dp-sgd"]
    assert names("all", listed()) == list(branches)
    assert set(branches) - set(names("all", parameters())) == {
        "non-private-titles",
        "dp-sgd-titles",
    }
    assert "prior-descent" not in names("all", listed(trainable="lora"))
    for text, given, refusal in (
        (
            "dp-sgd-titles",
            parameters(),
            of_kind("no-titles-to-start-at", saying="dp-sgd-titles"),
        ),
        ("nothing", listed(), of_kind("unknown-branch", saying="nothing")),
        (" , ", listed(), of_kind("no-branches")),
        (
            "prior-descent",
            listed(trainable="lora"),
            of_kind("another-model-form", saying="prior-descent"),
        ),
    ):
        with pytest.raises(InputError, check=refusal):
            choose(text, given, branches)


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path
) -> tuple[Context, list[run.Group]]:
    folder = tmp_path_factory.mktemp("compared")
    context = tiny_jobs.workspace(folder / "home")
    return context, groups(context, tiny_jobs.retrain(tiny_jobs.demo(folder), tiny_roberta))


def groups(context: Context, chosen: RetrainParameters, seeds: int = 2) -> list[run.Group]:
    terms = ComparisonSettings(target_epsilon=6.0, delta=1e-5, epochs=2, batch_size=64)
    branches = choose("dp-sgd,non-private", chosen, BRANCHES)
    return run.run(
        context,
        chosen,
        terms,
        branches,
        run_step=partial(run_step, context),
        seeds=seeds,
        epsilons=(6.0, 2.0),
    )


BRANCHES = standard_methods()


def test_a_branch_without_its_target_is_refused_before_work(tmp_path: Path) -> None:
    """Nothing is read."""
    with pytest.raises(InputError, check=of_kind("no-epsilon"), match=r"dp-sgd"):
        run.refuse_early(
            Context(home=str(tmp_path)),
            parameters(),
            ComparisonSettings(),
            [BRANCHES["dp-sgd"], BRANCHES["swag-ppm"]],
        )


def test_means_and_errors_are_of_seeds_and_of_records(
    compared: tuple[Context, list[run.Group]],
) -> None:
    """Manually from the scores of each fit, and from the resamples that all branches share."""
    context, made = compared
    dp, plain, further = summarise(made, context)
    assert [group.name for group in made] == [
        "dp-sgd at epsilon 6",
        "non-private",
        "dp-sgd at epsilon 2",
    ]
    assert [
        (one.epsilon is None or one.epsilon <= target)
        for one, target in ((dp, 6), (plain, 0), (further, 2))
    ]
    scores = [
        [outcome.figures["weighted_f1"] or 0.0 for outcome in group.outcomes] for group in made
    ]
    assert dp.mean["weighted_f1"] == pytest.approx(np.mean(scores[0]))
    assert dp.spread["weighted_f1"] == pytest.approx(np.std(scores[0], ddof=1))
    over = [
        np.mean([resampled_of(context, o.measured)["macro_f1"] for o in group.outcomes], 0)
        for group in made
    ]
    assert dp.record_errors["macro_f1"] == pytest.approx(np.std(over[0], ddof=1))
    apart = dp.difference["macro_f1"]
    assert apart.gap == pytest.approx(dp.mean["macro_f1"] - plain.mean["macro_f1"])
    assert apart.of_records == pytest.approx(np.std(over[0] - over[1], ddof=1))
    assert plain.difference == {}, "it is what the others are compared with"


def test_seconds_are_remembered_with_the_stages(compared: tuple[Context, list[run.Group]]) -> None:
    """Found stages took what they took; what was fitted elsewhere is not known."""
    context, made = compared
    chosen, before = made[0].study.parameters, [group.seconds for group in made]
    assert all(seconds is not None and seconds > 0 for seconds in before)
    assert [group.seconds for group in groups(context, chosen)] == pytest.approx(before)
    (context.workspace.private / "comparisons" / "seconds.json").unlink()
    assert [group.seconds for group in groups(context, chosen)] == [None] * 3


def test_a_stage_of_several_branches_runs_once(
    compared: tuple[Context, list[run.Group]], tmp_path: Path
) -> None:
    """Rounds of a chain share the stages before them."""
    asked: list[Step] = []
    context = tiny_jobs.workspace(tmp_path)

    def run_and_note(step: Step) -> ArtifactRef:
        asked.append(step)
        return run_step(context, step)

    chosen = compared[1][0].study.parameters
    branches = [BRANCHES["swag-ppm"], BRANCHES["swag-ppm-reweighted"]]
    run.run(context, chosen, ComparisonSettings(), branches, run_step=run_and_note)
    assert len({step.label for step in asked}) == len(asked)


def test_the_results_are_one_table_and_one_plot(compared: tuple[Context, list[run.Group]]) -> None:
    """As JSON, Markdown and SVG in the private workspace, without a figure of a code."""
    context, made = compared
    summaries = summarise(made, context)
    folder = results.write(made, summaries)
    assert folder.is_relative_to(context.workspace.private)
    written = json.loads((folder / "results.json").read_text())
    assert [BranchSummary.model_validate(one) for one in written["branches"]] == summaries
    text = (folder / "results.md").read_text()
    assert text.startswith("# Comparison: ")
    head, *rows = [
        line for line in text.splitlines() if line.startswith("| ") and "---" not in line
    ]
    assert head.split(" | ")[5:7] == ["weighted F1", "macro F1"]
    assert len(rows) == 3
    assert rows[0].startswith("| Non-private | none | – |")
    assert "this does not count codes that were only predicted" in text
    drawn = (folder / "results.svg").read_text()
    assert drawn.count("<svg") == 1
    assert {"0", "DP-SGD (paper's setting) (formal)"} <= set(re.findall("<!-- (.*?) -->", drawn))


def test_a_difference_needs_twice_both_errors() -> None:
    """Over seeds and over held-out records."""
    assert Difference(gap=0.021, of_seeds=0.01, of_records=0.01).conclusive
    assert not Difference(gap=0.021, of_seeds=0.011, of_records=0.0).conclusive
    assert not Difference(gap=-0.021, of_seeds=0.0, of_records=0.011).conclusive
