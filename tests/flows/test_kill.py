"""`kill -9` anywhere: the next run resumes, ends with the same weights bit for bit, and there is
one release.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warm
from jobs import Job

from storage.ledger import Ledger
from storage.paths import Workspace

pytestmark = pytest.mark.servers


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_at_random_moments_it_ends_as_if_unbroken(finished: Job, tmp_path: Path) -> None:
    """Every file of every stage equals the unbroken run's. The moments are random, somewhere in a
    stage that is random too: a seed that fails is printed, so that it can be tried again.
    """
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201
    moments = random.Random(seed)
    job = finished.at(tmp_path)
    kills = 0
    for stages in sorted(moments.sample(range(len(finished.stages())), 5)):
        process = subprocess.Popen(
            job.arguments(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=job.env,
        )
        while len(job.stages()) < stages and process.poll() is None:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 0.5))
        kills += process.poll() is None
        process.kill()
        process.wait()
    done = job.run()
    assert done.returncode == 0, done.stderr
    assert kills > 0, "no run was killed"
    assert job.stages() == finished.stages()
    (release,) = job.releases()
    assert release["state"] == "committed"
    assert [p.name for p in (job.home / "bundles").iterdir()] == [release["release_id"]]
    assert not any((job.home / "private" / "work").rglob("*.safetensors")), "checkpoints are left"


def test_two_retrains_at_once_release_once(finished: Job, tmp_path: Path) -> None:
    """The same command started twice on one workspace, where the narratives are encoded: each other
    stage is computed once, both end with the one release.
    """
    job = finished.copy(tmp_path / "home", "features")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: job.run("--json"), range(2)))
    for done in both:
        assert done.returncode == 0, done.stderr
    first, second = (json.loads(done.stdout) for done in both)
    assert first["release"] == second["release"]
    (row,) = job.releases()
    assert row["state"] == "committed"
    assert job.stages() == finished.stages()
    reused = sum(done.stderr.count("reused") for done in both)
    assert reused == 1 + len(finished.stages()) + 1, "a stage was computed twice, or by neither"


POINTS = (
    "storage.ledger.Ledger.reserve",
    *("tasks.releasing.drawing.os.link", "storage.ledger.Ledger.mark_drawn"),
    *("tasks.bundle.fill.export.save", "storage.bundle.folder.check_allowed"),
    *("storage.ledger.Ledger.commit", "storage.bundle.seal.proof_of"),
    *("storage.bundle.seal.write_atomically", "storage.bundle.seal.sign"),
)
"""Steps of a release, in order; the process dies before or after each. A kill while it samples is
in `test_a_sample_that_was_lost_is_not_taken_again`: that release ends there.
"""

DRIVER = """
import gc, os, signal, sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import matplotlib.pyplot, model_signing.signing, transformers
from flows.commands import profiles
from functools import partial
from tasks.branches.experiment import Study
from tasks.branches.plan import plan_release
from tasks.branches.released import released_branch
from tasks.releasing import publish
from tasks.running.stage import Context, run_step

home, data, codelist, *settings = sys.argv[1:]

def release():
    parameters = profiles.parameters(
        "demo", settings, {"data.source": [data], "data.codelist": codelist}
    )
    context = Context(home=home, device="cpu")
    branch, terms = released_branch(parameters)
    study = Study.of(context, parameters, terms, [branch], partial(run_step, context))
    planned = plan_release(study, study.experiment(branch).run())
    case = publish.save_plan(context, planned, parameters.release)
    publish.release(context, case, parameters.release)

def armed(point, when):
    module, _, name = point.rpartition(".")
    try:
        owner = import_module(module)
    except ModuleNotFoundError:
        module, _, inner = module.rpartition(".")
        owner = getattr(import_module(module), inner)
    real = getattr(owner, name)

    def deadly(*args, **kwargs):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, deadly)

for room in ("mechanisms", "storage", "tasks"):
    for found in walk_packages(import_module(room).__path__, f"{room}."):
        import_module(found.name)
gc.freeze()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        armed(*line.split())
        release()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Releases without Prefect around it, each in a process of its own that dies at one point; the
libraries load once.
"""


BEFORE = tuple((point, "before") for point in POINTS)
AFTER = tuple((point, "after") for point in POINTS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param((*BEFORE, AFTER[-1]), id="before"),
        pytest.param(AFTER, id="after", marks=pytest.mark.long),
    ],
)
def test_killed_at_each_step_of_the_release_there_is_one_draw(
    moments: tuple[tuple[str, str], ...], finished: Job, tmp_path: Path
) -> None:
    """The draw on the disk and its digest in the ledger never change once there. After a step is
    nearly before the next one: all of these moments are nightly, except for the last.
    """
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    job = finished.copy(tmp_path / "home")
    arguments = [str(job.home), str(job.data), str(job.codelist), *job.settings]
    draws: set[bytes] = set()
    digests: set[str] = set()
    ledger_url = Workspace(job.home).ledger_url
    with subprocess.Popen(
        [sys.executable, str(driver), *arguments],
        env=job.env | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for point, when in moments:
            print(point, when, file=process.stdin, flush=True)
            assert process.stdout.readline().strip() == str(-signal.SIGKILL), (point, when)
            draws |= {
                p.read_bytes()
                for p in (job.home / "private" / "releases").rglob("draw.safetensors")
            }
            rows = Ledger.open(ledger_url).releases()
            digests |= {row.draw_digest for row in rows if row.draw_digest}
            bundles = [p for p in (job.home / "bundles").iterdir() if not p.name.startswith(".")]
            assert len(rows) <= 1
            assert len(bundles) <= 1
            if rows and rows[0].state == "committed":
                assert bundles, (point, when)
        process.stdin.close()
        assert process.wait(300) == 0
    done = job.run()
    assert done.returncode == 0, done.stderr
    (row,) = job.releases()
    assert row["state"] == "committed"
    assert len(draws) == 1
    assert digests == {row["draw_digest"]}
    bundle, key = job.home / "bundles" / row["release_id"], job.home / "signing-key.pub.pem"
    sound = warm.command(
        job.warm, "verify", str(bundle), "--key", str(key), "--json", env=job.env, timeout=300
    )
    assert json.loads(sound.stdout)["golden_answers"] == 48, sound.stderr
