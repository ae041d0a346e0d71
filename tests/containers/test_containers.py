"""docker-compose.yml in a real engine: built, brought up, through training, a release, crashes, and
back. The tests go on from each other's state, in their order.
"""

import json
import os
import re
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from houses import IMAGE, PAGE, House
from printed_pages import code_blocks, commands
from runs import ended, in_state, release_run, small, start, with_settings

from tasks.running import worker_metrics

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3000)]

OF_THE_BASE = 150
"""Megabytes of python:3.11.14-slim-trixie, which a stand-in exceeds; what is ours is in the layers
above.
"""
DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = "\n".join(
    (DOCS / "how-to" / f"{page}.md").read_text()
    for page in ("operate", "back-up-and-recover", "scale-out")
)


def guide(section: str, number: int) -> list[str]:
    return commands(GUIDE, section, number)


def ours(house: House) -> list[str]:
    return [
        name
        for name, service in house.services().items()
        if service["image"].startswith("autocoder")
    ]


def kill(house: House, service: str) -> None:
    """SIGKILL from outside: a stop through the engine would count as wanted, and not start it
    again.
    """
    before = house.inspected(service)["State"]
    os.kill(before["Pid"], signal.SIGKILL)
    house.wait(
        f"{service} again",
        lambda: house.inspected(service)["State"]["StartedAt"] != before["StartedAt"],
    )


def test_the_image_is_small_and_built_once(house: House) -> None:
    """1.6 GB on the official base; a second build makes no image, not even one without a name."""
    layers = house.run_here(
        "docker", "history", "--format", "{{.Size}} {{.CreatedBy}}", "--human=false", IMAGE
    )
    own = 0
    for line in layers.splitlines():  # the newest first
        own += int(line.split()[0])
        if "SHELL" in line:
            break
    else:
        pytest.fail("the Dockerfile's first layer is not there")
    assert own / 1e6 + OF_THE_BASE < 1600, f"{own / 1e6:.0f} MB of our own"
    before = sorted(house.run_here("docker", "images", "-aq").split())
    house.compose("build")
    assert sorted(house.run_here("docker", "images", "-aq").split()) == before


def test_a_change_of_code_installs_no_package_again(house: House) -> None:
    """The layer of the packages, more than nine tenths of the image, is the same one."""

    def layers(tag: str) -> list[str]:
        return json.loads(house.run_here("docker", "image", "inspect", tag))[0]["RootFS"]["Layers"]

    module = house.folder / "flows" / "cli.py"
    before, text = layers(IMAGE), module.read_text()
    changed = f"{IMAGE}-changed"
    try:
        module.write_text(text + "\n# changed\n")
        recipe = ("--file", "deployments/images/autocoder.Dockerfile", "--tag", changed, ".")
        settings = dict(
            line.split("=", 1) for line in (house.folder / ".env").read_text().splitlines()
        )
        index = settings.get("AUTOCODER_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
        house.run_here("docker", "build", "--build-arg", f"TORCH_INDEX={index}", *recipe)
        after = layers(changed)
    finally:
        module.write_text(text)
        house.run_here("docker", "rmi", changed, check=False)
    same = [mine for mine, other in zip(before, after, strict=True) if mine == other]
    assert same == before[: len(same)], "they differ from one layer on"
    code = (
        len(
            [
                line
                for line in (house.folder / recipe[1]).read_text().splitlines()
                if line.startswith("COPY")
            ]
        )
        + 2
    )
    assert 0 < len(before) - len(same) < code


def test_nothing_is_root_writable_or_capable(house: House) -> None:
    """As the kernel has it: no process of ours is root or has a capability, and nothing but /tmp
    and volumes takes a file. The proxy alone is root, with the one capability that its program is
    marked with.
    """
    for name in house.services():
        told = house.inspected(name)
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{told['State']['Pid']}/status").read_text().splitlines()
        )
        assert told["HostConfig"]["ReadonlyRootfs"], name
        assert status["NoNewPrivs"] == "1", name
        if name == "proxy":
            assert int(status["CapBnd"], 16) == 1 << 10, "NET_BIND_SERVICE"
            continue
        assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0, name
        assert "0" not in status["Uid"].split(), name
    denied = house.inside(
        "worker-cpu", "bash", "-c", "for d in / /app /etc /home; do touch $d/x 2>&1 || true; done"
    )
    assert denied.count("Read-only file system") == 4, denied


def test_the_images_bill_lists_what_is_installed(house: House) -> None:
    """Each package with its version, in CycloneDX; nothing else, such as the tool that made it."""
    bill = json.loads(house.inside("worker-cpu", "cat", "/app/sbom.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    script = (
        "import importlib.metadata as m, json; print(json.dumps([[d.name, d.version] for d "
        "in m.distributions()]))"
    )
    found = json.loads(house.inside("worker-cpu", "python", "-c", script))
    installed = {(re.sub(r"[-_.]+", "-", n).lower(), v) for n, v in found} - {
        ("autocoder", "0.3.0")
    }
    listed = {(re.sub(r"[-_.]+", "-", c["name"]).lower(), c["version"]) for c in bill["components"]}
    assert len(installed) > 100
    assert {pair for pair in listed if pair[0] != "autocoder"} == installed


def test_what_a_worker_imports_is_compiled(house: House) -> None:
    """The file system is read-only, so what the build left uncompiled is compiled
    at every start.
    """
    script = (
        "import importlib, os, pkgutil, sys, flows, service\n"
        "for m in pkgutil.walk_packages(flows.__path__, 'flows.'): "
        "importlib.import_module(m.name)\n"
        "specs = [getattr(m, '__spec__', None) for m in list(sys.modules.values())]\n"
        "found = [spec.cached for spec in specs if getattr(spec, 'cached', None)]\n"
        "print(len(found), [c for c in found if not os.path.exists(c)])"
    )
    number, _, missing = house.inside("worker-cpu", "python", "-c", script).partition(" ")
    assert int(number) > 2000
    assert len(yaml.safe_load(missing)) < int(number) / 100, missing


def test_the_page_wants_a_login_and_asks_no_other_server(house: House) -> None:
    """Through the proxy, with the certificate of its own authority; the operator's browser is held
    to this server.
    """
    assert house.asked("/api/admin/version", login=False).status_code == 401
    assert house.asked("/api/admin/version").status_code == 200
    policy = house.asked("/").headers["content-security-policy"]
    assert "connect-src 'self'" in policy
    assert f"PREFECT_UI_URL={PAGE}" in house.inside("worker-cpu", "env"), (
        "what its logs name can be opened"
    )
    assert (house.folder / "narratives").stat().st_uid == 10001


def test_containers_reach_no_port_of_the_host(house: House) -> None:
    """A listener at each address of the host's: what has a way out reaches it by the same probe,
    the rest does not.
    """
    with socket.create_server(("0.0.0.0", 0)) as listener:
        threading.Thread(target=lambda: [listener.accept() for _ in range(99)], daemon=True).start()
        port = listener.getsockname()[1]
        told = json.loads(
            house.run_here(
                "docker", "network", "inspect", "autocodertest_inside", "autocodertest_outside"
            )
        )
        addresses = [network["IPAM"]["Config"][0]["Gateway"] for network in told]
        addresses += re.findall(r"inet ([0-9.]+)", house.run_here("ip", "-4", "addr"))
        script = (
            "import socket, sys\n"
            "for a in sys.argv[2:]:\n"
            "  try: socket.create_connection((a, int(sys.argv[1])), 1); print(a)\n"
            "  except OSError: pass"
        )
        others = sorted(set(addresses) - {"127.0.0.1"})
        for name in ours(house):
            reached = house.inside(name, "python", "-c", script, str(port), *others).split()
            assert bool(reached) is (name == "prefect-services"), (name, reached)


def test_the_policy_comes_into_force(house: House) -> None:
    """By the guide's own line: the officer's key is made on the host, the ledger's password stays
    in its container.
    """
    house.run_here("autocoder", "keys", "new", "--out", "officer")
    approvers = {"officer": (house.folder / "officer" / "signing-key.pub.pem").read_text()}
    policy = {
        "name": "agency",
        "approvals": {"minimum": 1, "approvers": approvers},
        "default": {"asymptotic-local": {"epsilon": 1000}},
    }
    (house.folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    (house.folder / "policy.yaml").chmod(0o644)
    (line,) = (line for line in guide("Install", -1) if "change-policy" in line)
    house.follow(line)


@pytest.fixture(scope="module")
def retrained(house: House) -> dict[str, Any]:
    parameters = with_settings(
        small(house), {"method": {"fine_tune": {"epochs": 50}}}
    )  # more than the kill takes
    run = start(house, "retrain/demo", parameters).json()
    stages = house.private() / "stages"
    house.wait("its features", lambda: list(stages.glob("features/*/manifest.json")), pause=0.02)
    kill(house, "worker-cpu")
    return run


def test_a_killed_worker_and_a_killed_database_come_back(
    house: House, retrained: dict[str, Any]
) -> None:
    """The engine starts them again; no container that was made anew leaves a worker behind that is
    offline.
    """
    names = {"cpu-worker-cpu", "cpu-worker-release", "cpu-worker-upkeep", "cpu-worker-coding"}
    kill(house, "postgres")
    house.compose("up", "-d", "--no-deps", "--force-recreate", "worker-coding")
    house.wait("health", lambda: not house.unhealthy(), pause=2)
    workers = house.post("/work_pools/cpu/workers/filter").json()
    assert {worker["name"] for worker in workers} == names
    assert len(workers) == len(names)
    assert json.loads(house.cli("ledger", "verify", "--json"))


def test_the_retrain_is_taken_up_and_released_once_the_officer_signed(
    house: House, retrained: dict[str, Any]
) -> None:
    """Approved by the guide's own commands, through the proxy; one release, whose bundle is in the
    volume.
    """
    done = house.wait("the retrain's end", lambda: ended(house, retrained["id"]))
    assert done["state_type"] == "COMPLETED", done["state"]
    assert done["run_count"] == 2, "resumed once"
    asked = house.wait("a release run", lambda: release_run(house, retrained["id"]))
    house.wait("its suspension", lambda: in_state(house, asked["id"], "PAUSED"))
    assert [
        row
        for row in json.loads(house.cli("ledger", "show", "--json"))["rows"]
        if row["kind"] == "release"
    ] == []

    plan = Path(asked["parameters"]["plan"]).name.removesuffix(".json")
    # on no terminal nobody answers the question that the page's command asks
    posted = guide("From training to release", 1)[-1].partition(" #")[0] + " --yes"
    house.follow(*guide("From training to release", 0), posted, PLAN=plan)
    done = house.wait("the release", lambda: ended(house, asked["id"]))
    assert done["state_type"] == "COMPLETED", done["state"]


@pytest.fixture(scope="module")
def release(house: House) -> str:
    (row,) = [
        row
        for row in json.loads(house.cli("ledger", "show", "--json"))["rows"]
        if row["kind"] == "release"
    ]
    assert row["state"] == "committed"
    return row["release_id"]


def coded(house: House, name: str, **more: Any) -> dict[str, Any]:
    """A run of `code-batch`, ended, on a file of narratives; its output is `name`."""
    source = house.folder / "narratives" / "new.csv"
    source.write_text("Final Narrative\nEmployee fell from a ladder.\nBurned by hot oil.\n")
    source.chmod(0o644)
    asked = {"data": "/narratives/new.csv", "out": f"/narratives/{name}"} | more
    run = start(house, "code-batch/code-batch", asked).json()
    return house.wait("the end of coding", lambda: ended(house, run["id"]))


def test_the_bundle_is_handed_over_verified_and_coded_with(house: House, release: str) -> None:
    """With the worker's own key, by the guide's lines; the partner's commands need no container,
    and the agency's own worker has neither records nor ledger.
    """
    outbox = house.folder / "outbox"
    outbox.mkdir(exist_ok=True)
    os.chown(outbox, 10001, 10001)
    handover, _ = guide("From training to release", 3)
    house.follow(handover, RELEASE=release)
    archive = f"outbox/{release}.tar.zst"
    house.run_here("autocoder", "verify", archive, "--key", "secrets/signing-key.pub.pem")
    text = "Employee fell from a ladder and fractured his wrist."
    by_hand = house.run_here("autocoder", "code", "--bundle", archive, "--json", text)
    (best,) = json.loads(by_hand)["codes"]
    assert best["code"] in (house.folder / "records" / "codelist.csv").read_text()
    done = coded(house, "coded.csv")
    assert done["state_type"] == "COMPLETED", done["state"]
    lines = (house.folder / "narratives" / "coded.csv").read_text().splitlines()
    assert len(lines) == 3
    assert all(release in line for line in lines[1:])


def test_a_revoked_bundle_codes_no_more(house: House, release: str) -> None:
    _, revoke = guide("From training to release", 3)
    house.follow(revoke, RELEASE=release)
    assert release in (house.folder / "outbox" / "roots.json").read_text()
    done = coded(house, "refused.csv")
    assert done["state_type"] == "FAILED"
    assert "was revoked on" in done["state"]["message"]
    assert not list((house.folder / "narratives").glob("*refused*"))


def test_all_end_when_they_are_asked_to_and_a_backup_comes_back(house: House) -> None:
    """SIGTERM ends each container, the engine kills none. A stack that lost every volume has, after
    the guide's commands, the same rows and bundles, checked against the head that was signed
    before.
    """
    backup, restore = guide("Back up and restore", 3), guide("Back up and restore", 4)
    house.follow(*backup)
    before = house.cli("ledger", "show", "--json")
    house.compose("stop", "--timeout", "300")
    ends = {name: house.inspected(name)["State"]["ExitCode"] for name in house.services()}
    assert 137 not in ends.values(), ends
    house.compose("down", "--volumes")
    house.up()
    workers = [name for name in house.services() if name.startswith("worker-")]
    house.compose("stop", *workers)
    assert not [
        row
        for row in json.loads(house.cli("ledger", "show", "--json"))["rows"]
        if row["kind"] == "release"
    ]
    for line in restore:
        house.follow(line)
    assert house.cli("ledger", "show", "--json") == before
    house.up()
    shown = house.cli("status", check=False)  # not 0 where a pool has no worker, as `gpu` here
    assert "cpu: 4 online" in shown
    assert "policy agency" in shown


def stages_by_result(house: House) -> dict[str, float]:
    """How many stages were computed, and how many found, since the workspace was made. Claims,
    which each run works out, are no stage of the store.
    """
    found: dict[str, float] = {}
    for family in worker_metrics.families(house.private()):
        for sample in family.samples:
            if family.name == "autocoder_stage_runs" and not sample.labels["stage"].startswith(
                "claim"
            ):
                result = sample.labels["result"]
                found[result] = found.get(result, 0) + sample.value
    return found


def test_stages_outlive_the_workspace_in_the_storage(house: House) -> None:
    """The profile `storage`, by the guide's lines: a retrain's stages are there. The server is
    killed and the workspace loses every stage: the same training run computes none.
    """
    (lines,) = (block for _, block in code_blocks(GUIDE) if "COMPOSE_PROFILES=storage" in block)
    settings = house.folder / ".env"
    settings.write_text(settings.read_text() + lines)
    house.up()
    house.wait("the storage", lambda: "storage" in house.healthy(), pause=2)
    parameters = small(house, seed=7)
    parameters["parameters"]["release"] = False

    def retrained() -> None:
        run = start(house, "retrain/demo", parameters).json()
        done = house.wait("the retrain's end", lambda: ended(house, run["id"]))
        assert done["state_type"] == "COMPLETED", done["state"]

    def kept(folder: Path) -> dict[str, bytes]:
        return {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("*/*/manifest.json")
        }

    retrained()
    there, here = (
        house.folder / "stages" / "stages" / "autocoder" / "stages",
        house.private() / "stages",
    )
    first, counted = kept(there), stages_by_result(house)
    assert len(first) > 5
    assert first.items() <= kept(here).items()
    kill(house, "storage")
    house.wait("the storage again", lambda: "storage" in house.healthy(), pause=2)
    for stage in here.iterdir():
        shutil.rmtree(stage)
    retrained()
    assert kept(there) == first
    assert kept(here) == first
    now = stages_by_result(house)
    assert now["computed"] == counted["computed"]
    assert now["reused"] > counted.get("reused", 0)
