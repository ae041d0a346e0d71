"""What is said of time: estimates corrected by what was timed, lines off a terminal, stages that
were interrupted.
"""

from pathlib import Path

from flows.commands.console import StageHeartbeat
from tasks.running import timings
from tasks.running.timings import TimingsListener, kind_of
from tasks.running.worker_metrics import MetricsListener, running_stages


def test_a_stage_computed_as_a_whole_corrects_the_next_estimate(tmp_path: Path) -> None:
    """One found finished, one that continued from a checkpoint and one too brief to tell anything
    do not.
    """
    told = TimingsListener(tmp_path, {"SWAG": 2.0, "risks": 4.0, "brief": 0.01})
    assert timings.read(tmp_path) == {}
    told.finished("SWAG (base)", {}, reused=False, seconds=6.0)
    told.finished("SWAG (weighted)", {}, reused=True, seconds=0.1)
    told.report("risks", 90, 100)
    told.finished("risks", {}, reused=False, seconds=0.4)
    told.finished("brief", {}, reused=False, seconds=3.0)
    assert timings.read(tmp_path) == {"SWAG": 3.0}
    (tmp_path / "timings.json").write_text("{")
    assert timings.read(tmp_path) == {}


def test_reruns_are_timed_by_their_branch() -> None:
    """Rounds and seeds of one kind are alike; reruns of one branch are not those of another."""
    assert kind_of("fine-tune (weighted)") == kind_of("fine-tune (base)") == "fine-tune"
    assert kind_of("dp-sgd, seed 3") == "dp-sgd"
    assert kind_of("audit trials (swag-ppm)") != kind_of("audit trials (prior-descent)")


def test_off_a_terminal_a_long_stage_says_how_far_it_is() -> None:
    """Nothing of a short one; then a line after 15 seconds and each minute, with the time left by
    the latest pace.
    """
    now = 0.0
    told = StageHeartbeat(lambda: now)
    told.started("features")
    lines = []
    for now in range(0, 201, 5):
        lines.append(told.line("features", now, 400))
    said = [line.strip() for line in lines if line]
    assert len(said) == 4
    assert said[0].startswith("features: 4% in 15 s, 1/s, about ")
    assert said[3] == "features: 49% in 3 min, 1/s, about 3 min left"
    told.started("slow start")
    began, slow = now, []
    for now in range(began, began + 401, 5):
        slow.append(told.line("slow start", max(1, 10 * (now - began - 200)), 2000))
    told.started("parts")
    told.line("parts", 0, 8)
    now += 129.5
    assert (
        str(told.line("parts", 1, 8)).strip()
        == "parts: 12% in 2 min, 2 min each, about 15 min left"
    )
    told.started("one")
    told.line("one", 0, 1)
    now += 44
    assert str(told.line("one", 1, 1)).strip() == "one: 100% in 44 s"
    assert "slow start: 57% in 5 min, 10/s, about 85 s left" in [
        line.strip() for line in slow if line
    ]


def test_an_interrupted_stage_is_still_told_of(tmp_path: Path) -> None:
    """Begun, reported and never ended, as a kill leaves it; a finished one is not, nor one of an
    earlier run.
    """
    heard = MetricsListener(tmp_path, "retrain", host="here")
    heard.started("ingest")
    heard.finished("ingest", {}, reused=False, seconds=1.0)
    heard.started("features")
    heard.report("features", 40, 100)
    (stage,) = running_stages(tmp_path)
    assert [stage[name] for name in ("flow", "host", "stage", "share")] == [
        "retrain",
        "here",
        "features",
        0.4,
    ]
    heard.finished("features", {}, reused=False, seconds=1.0)
    assert running_stages(tmp_path) == []
