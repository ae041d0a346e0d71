"""deployments/images: what its build imports is what its extras install, so that no removed package
ends the build.
"""

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

IMAGES = Path(__file__).parents[2] / "deployments" / "images"


def installed(distribution: str, extras: frozenset[str]) -> set[str]:
    """Returns the normalised names of a distribution and of all that it requires with these extras."""
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
        r"-e '\.\[([a-z0-9,]+)\]'", (IMAGES / "autocoder.Dockerfile").read_text()
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
