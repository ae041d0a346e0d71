"""schemathesis: whatever the description allows is answered as described, whatever it forbids is
refused.
"""

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig

from service.app import Settings, create_app
from service.clients import Clients, State
from tasks.coding.coder import open_bundle

KEY = "a key for tests only"
STATE = State(Clients.of({"tests": KEY}))
EXPECTED = SchemathesisConfig.from_dict(  # what is too long is refused before it is read as JSON
    {
        "checks": {"negative_data_rejection": {"expected-statuses": ["400", "401", "413", "422"]}},
        "request-timeout": 300,  # seconds, of a machine that does much else
    }
)
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.parametrize("examples", [10, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("operation", "good"),
    [
        ("POST /code", True),
        ("POST /code", False),
        ("POST /explain", False),
        ("GET /codes", True),
        ("GET /version", True),
        ("GET /health", True),
    ],
)
def test_the_service_does_what_it_describes(
    tiny_bundle: Path, operation: str, good: bool, examples: int
) -> None:
    """Statuses, bodies, content types, refusal of bad data, of other methods and of
    missing keys.
    """
    app = create_app(open_bundle(tiny_bundle), Settings(state=STATE))
    method, path = operation.split()
    described = schemathesis.openapi.from_asgi("/openapi.json", app, config=EXPECTED)[path][method]
    mode = GenerationMode.POSITIVE if good else GenerationMode.NEGATIVE
    statuses: set[int] = set()

    @given(case=described.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=SLOW)
    def holds(case: Case) -> None:
        statuses.add(case.call_and_validate(headers={"X-API-Key": KEY}).status_code)

    holds()
    assert 200 in statuses if good else statuses <= {200, 400, 401, 413, 422}
