"""Would win: a statement that is silent on how its fit was chosen: among seeds, samples, branches,
settings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import page_of_plan, release_plan
from planned_chain import nothing_charged, planned_chain
from refusals import of_kind

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import NonPrivateEvent
from storage.artifacts import ArtifactRef
from storage.bundle.seal import release_key
from storage.ledger import ComparisonFit, Evaluation, SearchFit, Sensitivity, Subject
from tasks.fitting.ingest import ingest_records
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing import ledger_access, ledger_records, publish
from tasks.releasing.claims import CHOSEN, COMPARED
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context, run_step

DECLARES = """
how a fit was chosen is in its statement
| lines left out or twice, another number; ten seeds, another sample, another population, another
registry's key; a comparison, a search, tuned settings under another name; fits looked at after the
approval
| another ledger; audits and a release under way count nothing
"""

Made = tuple[Context, PlannedRelease]
Chosen = tuple[Context, RetrainParameters]
REFUSED = "unprotected_inputs|this plan is out of date"
TUNED = "hyperparameters found on training records of public OSHA severe injury reports"


def look(
    context: Context, planned: PlannedRelease, number: int, subject: Subject | None, **changes: Any
) -> None:
    """The ledger's row of one more fit on the plan's records whose scores someone saw."""
    plan = planned.plan
    told: dict[str, Any] = {
        "subject": subject,
        "population": plan.population,
        "cohorts": plan.cohorts,
        "data_fingerprint": plan.data_fingerprint,
        "event": plan.event,
        "claim": plan.claim,
        "requester": "operator",
        "artifact_digests": {"fit": f"{number:064x}"},
        "idempotency_key": f"look {number} {subject}",
    }
    ledger_access.open_ledger(context, BundleParameters()).record(Evaluation(**told | changes))


def replanned(context: Context, planned: PlannedRelease) -> PlannedRelease:
    unmarked = planned.model_copy(update={"plan": planned.plan.model_copy(update={"ledger": None})})
    return publish.save_plan(context, unmarked, BundleParameters()).planned


def lines(planned: PlannedRelease) -> tuple[str, ...]:
    """What a plan says of its choice, after what it takes from the data set."""
    return planned.plan.claim.unprotected_inputs


def released_without(
    context: Context, planned: PlannedRelease, left_out: Callable[[str], bool]
) -> None:
    """The release of the plan without the lines that `left_out` holds of: refused."""
    kept = tuple(line for line in lines(planned) if not left_out(line))
    assert len(kept) < len(lines(planned)), "nothing was left out"
    claim = planned.plan.claim.model_copy(update={"unprotected_inputs": kept})
    edited = planned.model_copy(update={"plan": planned.plan.model_copy(update={"claim": claim})})
    with pytest.raises(MechanismError, check=of_kind("plan-differs", "plan-out-of-date")):
        release_plan(context, edited, BundleParameters())
    assert nothing_charged(context)


def fits(planned: PlannedRelease) -> int:
    """The number that officers sign, in the plan; its line says only that there may be others."""
    assert lines(planned).count(CHOSEN) == 1
    return planned.selection.fits


def test_the_number_left_out_or_another(made: Made) -> None:
    """The line goes, or stands twice: refused; so is a plan of one run fewer, one more or none."""
    context, planned = made
    first = replanned(context, planned)
    released_without(context, first, lambda line: line == CHOSEN)
    stated, content = fits(first), first.model_dump(mode="json")
    content["plan"]["claim"]["unprotected_inputs"].append(CHOSEN)
    with pytest.raises(MechanismError, check=of_kind("plan-differs", saying="unprotected_inputs")):
        release_plan(context, PlannedRelease.model_validate(content), BundleParameters())
    for other in {stated - 1, stated + 1, 0}:
        selection = first.selection.model_copy(update={"fits": other})
        edited = first.model_copy(update={"selection": selection})
        with pytest.raises(MechanismError, check=of_kind("plan-out-of-date")):
            release_plan(context, edited, BundleParameters())
    assert nothing_charged(context)


def test_ten_seeds_and_the_best_of_them(made: Made) -> None:
    """Retrained at ten seeds, ten scores seen, the first plan released: it says one fit, the ledger
    knows ten more. Planned again it says eleven; the same row twice is one fit. What partners read
    is the same, because one shared record changes the number.
    """
    context, planned = made
    first = replanned(context, planned)
    before = fits(first)
    for seed in [*range(10), 3]:
        look(context, planned, 100 + seed, Sensitivity(round="weighted"))
    with pytest.raises(MechanismError, check=of_kind("plan-differs", "plan-out-of-date")):
        release_plan(context, first, BundleParameters())
    assert nothing_charged(context)
    again = replanned(context, planned)
    assert fits(again) == before + 10
    assert again.digest != first.digest  # officers sign it anew
    assert again.plan.claim == first.plan.claim


def test_the_page_says_that_it_is_outdated(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plan show` and Prefect's pages object to what the release refuses; away from its records no
    one can tell.
    """
    context, planned = made
    first, file = replanned(context, planned), tmp_path / "plan.json"
    fresh = page_of_plan(context, first, file=file)
    assert "outdated" not in {one.key for one in fresh.answers}
    look(context, planned, 600, Sensitivity(round="weighted"))
    (told,) = (
        one for one in page_of_plan(context, first, file=file).answers if one.key == "outdated"
    )
    assert told.verdict == "warning"
    before, now = fits(first), fits(first) + 1
    assert (
        f"out of date: the same records were used again since (the ledger has {now} training runs"
        in told.text
    )
    assert f"the plan {before})" in told.text
    assert "outdated" not in {
        one.key for one in page_of_plan(context, replanned(context, planned), file=file).answers
    }
    monkeypatch.setenv("AUTOCODER_LEDGER_URL", context.workspace.ledger_url)
    away = page_of_plan(Context(home=str(tmp_path / "officer")), first, file=file)
    assert "outdated" not in {one.key for one in away.answers}


def test_an_outdated_plan_is_refused_at_once_and_renewed(made: Made) -> None:
    """Before a server starts, in words and with the command; the renewed one states the facts. A
    plan that is current stays as it is, with its approvals.
    """
    context, planned = made
    first = replanned(context, planned)
    file = first.file(context)
    publish.open_case(context, file, BundleParameters())
    look(
        context,
        planned,
        700,
        ComparisonFit(branch="dp-sgd", seed=1),
        event=NonPrivateEvent(epochs=1),
        claim=None,
    )
    look(context, planned, 701, SearchFit(target_epsilon=4, round="weighted"))
    with pytest.raises(MechanismError, check=of_kind("plan-out-of-date")) as refused:
        publish.open_case(context, file, BundleParameters())
    text = str(refused.value)
    assert f"the ledger has {fits(first) + 2} training runs on them, the plan {fits(first)}" in text
    assert f"`autocoder plan {file} --renew`" in text
    assert "Nothing was charged" in text
    assert "unprotected" not in text
    case = publish.renew_plan(context, file, BundleParameters())
    renewed = case.planned
    assert (case.file, fits(renewed)) == (file, fits(first) + 2)
    assert PlannedRelease.load(file) == renewed
    publish.open_case(context, file, BundleParameters())
    assert publish.renew_plan(context, file, BundleParameters()).digest == renewed.digest


def test_the_scores_of_another_sample_of_the_same_records(made: Made, chosen: Chosen) -> None:
    """Another `data.ingest.seed` or population gives another fingerprint: the records are known all
    the same.
    """
    context, planned = made
    _, parameters = chosen
    before = fits(replanned(context, planned))
    ingest = parameters.data.ingest.model_copy(update={"seed": parameters.data.ingest.seed + 1})
    other = parameters.model_copy(
        update={
            "data": parameters.data.model_copy(update={"ingest": ingest, "population": "others"})
        }
    )
    dataset = run_step(context, ingest_records(other.data))
    assert context.store.figures(dataset)["fingerprint"] != planned.plan.data_fingerprint
    ledger_records.record_evaluation(
        context,
        other,
        subject=ComparisonFit(branch="dp-sgd", seed=1),
        dataset=dataset,
        refs={"fit": ref("e"), "measures": ref("f")},
        details={"weighted_f1": 0.5},
        event=planned.plan.event,
        claim=planned.plan.claim,
        prefect_run_id=None,
    )
    assert fits(replanned(context, planned)) == before + 1


def test_a_comparison_that_nobody_mentions(made: Made) -> None:
    """Two branches were scored on these records: the line follows, for a retrain's plan too."""
    context, planned = made
    for number, branch in enumerate(("dp-sgd", "non-private")):
        look(
            context,
            planned,
            200 + number,
            ComparisonFit(branch=branch, seed=1),
            event=NonPrivateEvent(epochs=1),
            claim=None,
        )
    again = replanned(context, planned)
    assert COMPARED in lines(again)
    released_without(context, again, lambda line: line == COMPARED)


def test_a_search_that_nobody_mentions(made: Made) -> None:
    """c was found by fits on these records, and then given manually."""
    context, planned = made
    look(context, planned, 300, SearchFit(target_epsilon=4, round="weighted"))
    again = replanned(context, planned)
    assert any("for a target epsilon" in line for line in lines(again))
    released_without(context, again, lambda line: "for a target epsilon" in line)


def test_settings_tuned_under_another_name(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A branch of one's own with the tuned settings and no line: the fit's settings tell, whatever
    it is called.
    """
    context, planned = made
    real = context.store.recipe
    tuned = {
        "kind": "dp-sgd",
        "optimiser": "sgd",
        "learning_rate": 3.0,
        "momentum": 0.9,
        "epochs": 40,
    }
    tuned |= {"sampling_prob": 1.0, "clip": 1.0}

    def recipe(self: Any, of: ArtifactRef) -> dict[str, Any]:
        found: Any = dict(real(of))
        if of == planned.candidate.fitted:
            found["config"] = dict(found["config"]) | {"mechanism": tuned}
        return found

    monkeypatch.setattr(type(context.store), "recipe", recipe)
    again = replanned(context, planned)
    assert any(line.startswith(TUNED) for line in lines(again))
    released_without(context, again, lambda line: line.startswith(TUNED))
    tuned["learning_rate"] = 0.3  # someone's own choice
    assert not any(line.startswith(TUNED) for line in lines(replanned(context, planned)))


def test_fits_on_other_records_count_nothing(made: Made) -> None:
    """Nor do audits, handovers and the like: anyone who audits a plan need not plan again."""
    context, planned = made
    before = replanned(context, planned)
    look(context, planned, 500, ComparisonFit(branch="dp-sgd", seed=1), data_fingerprint="0" * 64)
    look(context, planned, 501, None, label="audit: dp-sgd, seed 1", kind="audit")
    assert replanned(context, planned) == before


def ref(name: str) -> ArtifactRef:
    return ArtifactRef(uri=f"file:///nowhere/{name}", sha256=name * 64, kind="test")


def test_another_key_meanwhile(
    made: Made, chosen: Chosen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sample, marked with another registry's key, so that no one can compare: it counts."""
    context, planned = made
    _, parameters = chosen
    before = fits(replanned(context, planned))
    ingest = parameters.data.ingest.model_copy(update={"seed": parameters.data.ingest.seed + 2})
    other = parameters.model_copy(
        update={"data": parameters.data.model_copy(update={"ingest": ingest})}
    )
    key = tmp_path / "other.key"
    key.write_bytes(b"o" * 32)
    monkeypatch.setenv("AUTOCODER_REGISTRY_KEY", str(key))
    dataset = run_step(context, ingest_records(other.data))
    told: dict[str, Any] = {"details": {}, "event": planned.plan.event, "claim": planned.plan.claim}
    refs = {"fit": ref("a")}
    ledger_records.record_evaluation(
        context,
        other,
        subject=ComparisonFit(branch="sad", seed=1),
        dataset=dataset,
        refs=refs,
        prefect_run_id=None,
        **told,
    )
    monkeypatch.delenv("AUTOCODER_REGISTRY_KEY")
    assert fits(replanned(context, planned)) == before + 1


def test_a_release_under_way_goes_on(chosen: Chosen, made: Made, tmp_path: Path) -> None:
    """What was looked at after the reservation does not stop the draw that it paid for. (Releases:
    the last here.)
    """
    _, parameters = chosen
    context = Context(home=str(tmp_path / "home"), device="cpu")
    context.workspace.create()
    planned = planned_chain(context, parameters)
    kept = publish.save_plan(context, planned, parameters.release).planned
    ledger = ledger_access.open_ledger(
        context, BundleParameters(), key=release_key(context.workspace)
    )
    kept.save_reserved(context)
    ledger.reserve(kept.plan, plan_digest=kept.digest)
    look(context, kept, 1, ComparisonFit(branch="dp-sgd", seed=1))
    released = release_plan(context, kept, BundleParameters())
    assert release_plan(context, kept, BundleParameters()) == released
