"""An S3 server for tests: moto's, over HTTP on loopback, with credentials from the environment as
in production.
"""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def access(address: str) -> dict[str, str]:
    """The environment by which a process reaches the server."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def new_bucket() -> str:
    """Makes an empty bucket on the environment's server, and gives a URL inside it."""
    import fsspec

    made = f"bucket-{uuid4().hex[:12]}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(made)
    fsspec.filesystem("s3").clear_instance_cache()
    return f"s3://{made}/pre/fix"


@pytest.fixture
def s3_bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Makes an empty bucket, in an environment that reaches it, and gives a URL inside it."""
    for name, value in access(s3).items():
        monkeypatch.setenv(name, value)
    return new_bucket
