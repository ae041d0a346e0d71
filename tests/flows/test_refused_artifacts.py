"""What is only shown ends no run: a server that answers artifacts with 500 costs the bar and the
page's text.
"""

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

from flows.server import prefect_run

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
