"""A stage by parts has the same bytes in every engine; a part that exists is not computed again."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from refusals import of_kind

from mechanisms.posterior import risks
from storage.errors import StorageError
from tasks.auditing import pool as audit_pool
from tasks.auditing.run import reruns
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import ComparisonSettings
from tasks.comparing import run as comparison
from tasks.comparing.distribute import finish_on_workers
from tasks.comparing.summary import summarise
from tasks.fitting import fits
from tasks.method import standard_methods
from tasks.parameters import RetrainParameters
from tasks.running import engine, parts
from tasks.running.parts import Part
from tasks.running.stage import Context, Work, run_step

BY_PARTS = ("features", "branch-fit")
OF_PARTS = ("features-part", "fit-part", "fit-files", "trials-part")


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> RetrainParameters:
    """A job of seconds on the tiny encoder, whose passes have several parts."""
    data = tiny_jobs.demo(tmp_path_factory.mktemp("data"), records=160)
    return tiny_jobs.retrain(data, tiny_roberta, risk_draws=7, round_name="weighted")


@pytest.fixture(autouse=True, scope="module")
def _close() -> Iterator[None]:
    yield
    engine.disconnect("2")


def fit(parameters: RetrainParameters, home: Path, chosen: str) -> None:
    tiny_jobs.fitted(tiny_jobs.workspace(home, engine=chosen), parameters)


def manifests(home: Path, *names: str) -> dict[str, bytes]:
    """Of the finished stages of these names, all without one: they hold the digest
    of every file.
    """
    root = home / "private" / "stages"
    return {
        str(p.parent.relative_to(root)): p.read_bytes()
        for n in names or "*"
        for p in root.glob(f"{n}/*/manifest.json")
    }


def test_processes_write_what_one_process_writes(
    parameters: RetrainParameters, tmp_path: Path
) -> None:
    """Every stage of a retrain, the later ones under the same keys; no part is left behind."""
    fit(parameters, tmp_path / "one", "")
    fit(parameters, tmp_path / "two", "2")
    expected = manifests(tmp_path / "one")
    assert {name.partition("/")[0] for name in expected} >= {*BY_PARTS, "predictions", "scores"}
    assert manifests(tmp_path / "two") == expected
    assert not manifests(tmp_path / "two", *OF_PARTS)


def test_a_part_that_is_there_is_not_computed_again(
    parameters: RetrainParameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run dies in a pass; the next one computes what is missing, and ends alike."""
    fit(parameters, tmp_path / "whole", "")
    passes: list[range] = []
    real = risks.risk_pass

    def dies(*arguments: Any, **options: Any) -> Any:
        if dying and len(passes) == 3:
            raise KeyboardInterrupt  # nothing of ours catches it
        passes.append(options["draws"])
        return real(*arguments, **options)

    monkeypatch.setattr(risks, "risk_pass", dies)
    dying = True
    with pytest.raises(KeyboardInterrupt):
        fit(parameters, tmp_path / "broken", "")
    assert len(manifests(tmp_path / "broken", "fit-part")) == 3
    dying = False
    fit(parameters, tmp_path / "broken", "")
    assert manifests(tmp_path / "broken") == manifests(tmp_path / "whole")
    assert len(passes) == 7 + 5, "each draw of either pass once"


@pytest.fixture
def elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Callable[[str], str], str]]:
    """A cluster whose worker has a workspace of its own; what it is asked to compute, and the
    requests.
    """
    asked: list[tuple[Callable[[str], str], str]] = []

    def on_worker(body: Any, requests: list[str], *, done: Any, **_: Any) -> None:
        for number, request in enumerate(requests):
            asked.append((body, request))
            body(request)
            done(number)

    monkeypatch.setenv("AUTOCODER_HOME", str(tmp_path / "worker"))
    monkeypatch.setattr(engine, "map_parts", on_worker)
    return asked


def test_machines_share_a_place_and_are_told_digests(
    parameters: RetrainParameters,
    tmp_path: Path,
    elsewhere: list[tuple[Callable[[str], str], str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker fetches what a part reads and the run fetches the part; a request has nothing else
    in it.
    """
    fit(parameters, tmp_path / "one", "")
    elsewhere.clear()
    put_together: list[str] = []
    real = fits._fit

    def spied(work: Work, *arguments: Any) -> Any:
        put_together.append(work.context.home)
        return real(work, *arguments)

    monkeypatch.setattr(fits, "_fit", spied)
    monkeypatch.setenv("AUTOCODER_STORAGE", str(tmp_path / "shared"))
    fit(parameters, tmp_path / "home", "tls://nobody:1")
    assert manifests(tmp_path / "home", *BY_PARTS) == manifests(tmp_path / "one", *BY_PARTS)
    assert manifests(tmp_path / "worker", *OF_PARTS)
    assert set(put_together) == {str(tmp_path / "home")}, "what is put together is the run's own"
    assert not list((tmp_path / "shared").rglob("fit-part/*/manifest.json")), "parts do not stay"
    for _, text in elsewhere:
        asked = json.loads(text)
        assert set(asked) == {"settings", "inputs", "key", "home", "device"}
        assert asked["home"] is None
        assert all(set(ref) == {"kind", "uri", "sha256"} for ref in asked["inputs"].values())
    last_of_each = dict(elsewhere)
    assert {fits.compute_units, fits.compute} <= set(last_of_each)
    for compute, text in last_of_each.items():
        changed = json.loads(text) | {"key": "0" * 32}
        with pytest.raises(StorageError, check=of_kind("worker-differs")):
            compute(json.dumps(changed))


def test_a_part_that_does_not_arrive_is_no_smaller_maximum(
    parameters: RetrainParameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.map_parts

    def lossy(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        for part in (tmp_path / "home" / "private" / "stages" / "fit-part").glob("*"):
            shutil.rmtree(part)
            break

    monkeypatch.setattr(engine, "map_parts", lossy)
    with pytest.raises(StorageError, check=of_kind("output-elsewhere", saying="this workspace")):
        fit(parameters, tmp_path / "home", "")


def rerun(parameters: RetrainParameters, home: Path, chosen: str) -> dict[str, bytes]:
    context = tiny_jobs.workspace(home, engine="")
    runner = partial(run_step, context.model_copy(update={"engine": chosen}))
    branch = standard_methods()["swag-ppm"]
    study = comparison.run(context, parameters, ComparisonSettings(), (branch,), run_step=runner)[
        0
    ].study
    pool = runner(audit_pool.pool(canaries=4, seed=parameters.seed, prepared=study.prepared))
    ref, _ = reruns(
        study,
        AuditParameters(trials=20, trial_draws=3),
        branch,
        pool,
        study.experiment(branch).mechanism,
    )
    return {file.name: file.read_bytes() for file in context.store.open(ref).iterdir()}


def test_processes_rerun_what_one_process_reruns(
    parameters: RetrainParameters, tmp_path: Path
) -> None:
    """Three parts, the last of them smaller."""
    one = rerun(parameters, tmp_path / "one", "")
    assert rerun(parameters, tmp_path / "two", "2") == one


def test_processes_predict_what_one_process_predicts(
    parameters: RetrainParameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of 20 records, the last of them smaller; the scores are of all of them."""
    monkeypatch.setattr(fits, "_TOKENS_PART", 20)
    scored = {}
    for chosen in ("", "2"):
        context = tiny_jobs.workspace(tmp_path / f"home{chosen}", engine=chosen)
        comparison.run(
            context,
            parameters,
            ComparisonSettings(epochs=2),
            (standard_methods()["non-private"],),
            run_step=lambda step, context=context: run_step(context, step),
            seeds=1,
        )
        scored[chosen] = manifests(Path(context.home), "predictions", "scores")
    assert len(scored[""]) == 2
    assert scored["2"] == scored[""]
    assert not manifests(tmp_path / "home2", "predictions-part")


def test_workers_run_the_branches_of_a_comparison(
    parameters: RetrainParameters, tmp_path: Path
) -> None:
    """The same aggregates in the same order; a branch whose noise has no seed is drawn once."""
    branches = ("non-private", "swag-ppm")
    told = {}
    for chosen in ("", "2"):
        context = tiny_jobs.workspace(tmp_path / f"home{chosen}", engine=chosen)
        ran: list[str] = []

        def run_and_note(step: Any, context: Context = context, ran: list[str] = ran) -> Any:
            ran.extend([step.name] if step.find(context.store) is None else [])
            return run_step(context, step)

        compared = comparison.run(
            context,
            parameters,
            ComparisonSettings(epochs=2),
            tuple(standard_methods()[name] for name in branches),
            run_step=run_and_note,
            seeds=2,
            run_on_workers=finish_on_workers if chosen else None,
        )
        told[chosen] = [
            one.model_copy(update={"seconds": None}) for one in summarise(compared, context)
        ]
        if chosen:
            assert set(ran) <= {"ingest", "titles", "features"}, (
                "what branches run is run on workers alone"
            )
    assert told[""] == told["2"]


@pytest.mark.parametrize(("number", "size"), [(7, 3), (5, 5), (2, 9), (1000, 7), (1, 1)])
def test_parts_are_all_units_once(number: int, size: int) -> None:
    cut = Part(end=number).cut(size)
    assert [unit for part in cut for unit in range(part.first, part.end)] == list(range(number))
    assert {part.size for part in cut[:-1]} <= {size}


def test_a_bar_moves_with_shares_of_parts() -> None:
    """In this process by those at work, and backwards never."""
    seen: list[tuple[int, int]] = []
    tally = parts._Tally(lambda done, total: seen.append((done, total)), {"a": 10, "b": 30})
    tally.end("a")
    tally.report("b", 1, 2)
    tally.report("another stage", 1, 1)
    tally.end("b")
    assert seen == [(10, 40), (25, 40), (40, 40)]
