"""deployments/images: what its build imports is what its extras install, so that no removed package
ends the build.
"""

import re
from importlib import metadata
from pathlib import Path

import hashed_install
import pytest
from packaging.requirements import Requirement

IMAGES = Path(__file__).parents[2] / "deployments" / "images"


def installed(distribution: str, extras: frozenset[str]) -> set[str]:
    """Returns the normalised names of a distribution and of all that it requires
    with these extras.
    """
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(distribution, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if (normal(name), wanted) in found:
            continue
        found.add((normal(name), wanted))
        try:
            requirements = [Requirement(line) for line in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:  # for another platform
            continue
        waiting += [
            (one.name, frozenset(one.extras))
            for one in requirements
            if one.marker is None
            or any(one.marker.evaluate({"extra": extra}) for extra in ("", *wanted))
        ]
    return {name for name, _ in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_build_imports_only_what_it_installs() -> None:
    (extras,) = re.findall(
        r"hashed_install\.py ([a-z0-9,]+) ", (IMAGES / "autocoder.Dockerfile").read_text()
    )
    there = installed("autocoder", frozenset(extras.split(",")))
    distributions = metadata.packages_distributions()
    names = [
        line
        for line in (IMAGES / "imported.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert len(names) > 20
    missing = [
        n for n in names if not there & {normal(d) for d in distributions.get(n.split(".")[0], [])}
    ]
    assert not missing, "no extra of the image brings them"
    assert "model-signing" not in there, "what only the tests use is no part of it"


def test_each_package_is_installed_by_its_hash() -> None:
    """All but torch have one; what the lock file has in another version, or without one, ends the
    installation.
    """
    lock = (IMAGES.parents[1] / "requirements.lock").read_text()
    locked = hashed_install.pins(lock)
    assert [name for name, entry in locked.items() if "--hash=" not in entry] == ["torch"]
    assert {"hatchling", "editables", "cyclonedx-bom"} <= set(locked)

    def report(name: str, version: str) -> dict[str, object]:
        return {"install": [{"metadata": {"name": name, "version": version}}]}

    version = locked["rfc8785"].split()[0].partition("==")[2]
    (entry,) = hashed_install.chosen(report("RFC8785", version), locked)
    assert entry == locked["rfc8785"]
    for name, other in (("rfc8785", f"{version}1"), ("torch", "2.13.0"), ("unknown", "1")):
        with pytest.raises(SystemExit):
            hashed_install.chosen(report(name, other), locked)


def test_extras_of_extras_are_required() -> None:
    project = {
        "project": {
            "name": "own",
            "dependencies": ["a"],
            "optional-dependencies": {"x": ["own[y]", "b"], "y": ["c"], "z": ["d"]},
        }
    }
    assert sorted(hashed_install.requirements(project, ["x"])) == ["a", "b", "c"]


def test_no_image_is_named_by_a_tag_that_moves() -> None:
    """Digests cannot be looked up without a registry, so each is named by its whole version."""
    images = re.findall(r"^FROM (\S+)", (IMAGES / "autocoder.Dockerfile").read_text(), re.MULTILINE)
    compose = (IMAGES.parents[1] / "docker-compose.yml").read_text()
    images += [
        image
        for image in re.findall(r"^ +image: (\S+)", compose, re.MULTILINE)
        if not image.startswith(("autocoder", "*"))
    ]
    assert len(images) == 5
    assert all(re.search(r":v?\d+\.\d+", image) for image in images), images
