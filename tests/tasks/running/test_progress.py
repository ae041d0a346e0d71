"""Who hears of a stage: the listeners of the run that it belongs to, in whichever
thread it works.
"""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from threading import Thread

from tasks.running import progress
from tasks.running.progress import Listener, listening
from tasks.running.stage import Context, Step, Work, run_step


class Heard(Listener):
    def __init__(self) -> None:
        self.reports: list[tuple[str, int]] = []
        self.sizes: list[tuple[str, int]] = []

    def sized(self, label: str, records: int) -> None:
        self.sizes.append((label, records))

    def report(self, label: str, done: int, total: int | None) -> None:
        self.reports.append((label, done))


def _step(number: int) -> Step:
    def body(work: Work) -> dict[str, int]:
        work.sized(100 + number)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda done: work.progress(done, 4), range(4)))
        return {}

    return Step(
        name="stage", label=f"stage {number}", config={"number": number}, inputs={}, body=body
    )


def test_threads_of_a_stage_report_to_its_run(tmp_path: Path) -> None:
    """As an audit's trials do; no one listens any more when the block has ended."""
    heard = Heard()
    with listening(heard):
        run_step(Context(home=str(tmp_path)), _step(0))
    run_step(Context(home=str(tmp_path)), _step(1))
    assert sorted(heard.reports) == [("stage 0", done) for done in range(4)]
    assert heard.sizes == [("stage 0", 100)]


def test_runs_side_by_side_do_not_hear_each_other() -> None:
    """A thread has its own run's listeners, those around it included where it was started with
    their context.
    """
    outer, inner, apart = Heard(), Heard(), Heard()

    def run(listener: Heard, label: str) -> None:
        with listening(listener):
            progress.report(label, 1, 1)

    with listening(outer):
        threads = [
            Thread(target=copy_context().run, args=(run, inner, "inner")),
            Thread(target=run, args=(apart, "apart")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (outer.reports, inner.reports, apart.reports) == (
        [("inner", 1)],
        [("inner", 1)],
        [("apart", 1)],
    )


def test_a_long_line_leaves_out_single_bins_and_says_how_many() -> None:
    """Of twelve figures and fewer, all are reported."""
    few = {"weighted_f1": 0.5, "support_0_19_codes": 7}
    assert progress.line_of(few) == "weighted f1 0.5, support 0 19 codes 7"
    many = {"weighted_f1": 0.5, "support_0_19_macro_f1": 0.25, "top_3": 0.7} | {
        f"coverage_at_{n}": 0.1 for n in range(12)
    }
    assert progress.line_of({"records": 3} | many) == "records 3, weighted f1 0.5, and 14 more"


def test_a_stage_is_told_in_words() -> None:
    """A verb and a line for each known stage, by its name; the figure that matters is there, an ε
    is rounded up.
    """
    of_plan = progress.words_of(
        "plan", "plan (prior-descent)", {"epsilon": 4.99999845, "delta": 1e-5}
    )
    assert of_plan == ("plan", "plan (prior-descent): ε 5, δ 1e-5")
    scores = {"accuracy": 0.7, "macro_f1": 0.249, "weighted_f1": 0.748} | {
        f"coverage_at_{n}": 0.1 for n in range(40)
    }
    assert progress.words_of("scores", "scores of prior-descent, seed 1", scores) == (
        "score",
        "weighted F1 0.748, macro F1 0.249 on held-out records (internal)",
    )
    counts = {"records": 1800, "train": 1200, "test": 600, "codes_observed": 46, "label_space": 615}
    assert progress.words_of("ingest", "ingest", counts | {"fingerprint": "d" * 64})[1] == (
        "1,800 records: 1,200 to train on, 600 held out; 46 of 615 codes"
    )
    fitted = {"releasable": True, "loss": 1.02877}
    assert (
        progress.words_of("branch-fit", "prior-descent, seed 1", fitted)[1]
        == "prior-descent, seed 1, loss 1.029"
    )
    pool = progress.words_of("audit-pool", "audit pool", {"records": 3})
    assert pool == ("audit pool", "records 3"), "as it is, where figures are missing"
    assert progress.words_of("new", "a new one", {"n": 3}) == ("a new one", "n 3")
