"""What is only shown ends no run: a server that answers artifacts with 500 costs the bar and the
page's text.
"""

import logging

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, PREFECT_UI_URL, temporary_settings

from flows.server import prefect_run
from storage.errors import InputError
from tasks.releasing import prefect_page
from tasks.running.progress import sentence_of

tries: list[int] = []


def refuse(*_: object, **__: object) -> None:
    tries.append(PREFECT_CLIENT_MAX_RETRIES.value())
    raise PrefectHTTPStatusError(
        "500",
        request=httpx.Request("POST", "http://server/artifacts"),
        response=httpx.Response(500),
    )


@pytest.mark.parametrize("name", ["create_progress_artifact", "create_markdown_artifact"])
def test_a_refused_artifact_ends_no_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An error of ours still does. A stage does not wait for its bar: a server that is away is
    asked once.
    """
    warned: list[str] = []

    class Log:
        def warning(self, *words: str) -> None:
            warned.append(words[-1])

    monkeypatch.setattr(prefect_run, "get_run_logger", Log)
    monkeypatch.setattr(prefect_run, "_SECONDS_BETWEEN_UPDATES", 0.0)
    monkeypatch.setattr(prefect_run, name, refuse)
    show = {
        "create_progress_artifact": lambda: bar.report("stage", 1, 2),
        "create_markdown_artifact": lambda: prefect_run.PrefectRun().publish_markdown(
            key="k", markdown="m", description="d"
        ),
    }[name]
    bar = prefect_run.ProgressBars()
    bar.started("stage")
    show()
    assert warned == ["PrefectHTTPStatusError"]
    assert (tries.pop() == 0) is (name == "create_progress_artifact")
    monkeypatch.setattr(prefect_run, name, lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        show()


def test_a_plan_has_a_link_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads to the artifact, on the page whose address the worker knows."""
    logged: list[str] = []
    monkeypatch.setattr(prefect_run, "create_markdown_artifact", lambda **_: "6f1c")
    monkeypatch.setattr(prefect_run, "_log", lambda *words: logged.append(words[0] % words[1:]))
    with temporary_settings({PREFECT_UI_URL: "https://prefect.agency.example/v2"}):
        page = prefect_page.publish_plan(prefect_run.PrefectRun(), "the plan")
    assert page == "https://prefect.agency.example/v2/artifacts/artifact/6f1c"
    assert logged == [f"Plan of the release: {page}"]


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_no_bar_stays_when_its_stage_ends(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Well or not; the log says what was done, without a figure."""
    logged: list[str] = []
    deleted: list[object] = []
    monkeypatch.setattr(prefect_run, "_SECONDS_BETWEEN_UPDATES", 0.0)
    monkeypatch.setattr(prefect_run, "create_progress_artifact", lambda **_: "the bar")
    monkeypatch.setattr(
        prefect_run.ProgressBars, "_delete", lambda self, artifact: deleted.append(artifact)
    )
    monkeypatch.setattr(prefect_run, "_log", lambda *words: logged.append(words[0] % words[1:]))
    bar = prefect_run.ProgressBars()
    bar.named("records", "ingest")
    bar.started("records")
    bar.report("records", 1, 2)
    if end == "failed":
        bar.failed("records")
    else:
        bar.finished("records", {"records": 8731}, reused=False, seconds=12.0)
        assert len(logged) == 1
        assert sentence_of("ingest", "records") in logged[0]
        assert "8731" not in logged[0]
        assert "8,731" not in logged[0]
    assert deleted == ["the bar"]


def test_a_refusal_is_one_line_of_the_log() -> None:
    """The run logs it itself. Prefect's lines about it, for the task and for the flow, are left
    out; of another error everything stays.
    """
    told = []
    for error in (InputError("--data: no file"), KeyError("other")):
        for name in ("prefect.task_runs", "prefect.flow_runs"):
            record = logging.LogRecord(
                name, logging.ERROR, __file__, 1, "Encountered %r", (error,), None
            )
            record.exc_info = (type(error), error, None)
            if logging.getLogger(name).filter(record):
                told.append((record.getMessage(), record.exc_info is None))
    assert [traceback for _, traceback in told] == [False, False]
    assert not any("no file" in text for text, _ in told)
