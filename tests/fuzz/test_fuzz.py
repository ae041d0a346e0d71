"""Mutated files and requests: whatever comes in is taken whole or refused in words of our own, and
nothing of it told. The seeds in `corpus/` are committed: files and requests that were attacks once,
and plain ones. A few mutations of each run at every commit, always the same ones; many, new each
time, in `make test-long`.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from releases import make_plan, release_key
from sealed_bundle import Sealed
from starlette.testclient import TestClient

from service.app import Settings, create_app
from service.clients import Clients, State
from storage.bundle.archive import open_folder, pack
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle
from storage.bundle.trust import Root, Trust, sign_newest, with_next_root, write_roots
from storage.datasets import load_table
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig, ingest
from storage.ledger import Ledger, Policy
from storage.ledger.journal import Journal
from storage.tables.reader import pieces, survey
from storage.tables.writer import open_writer, output_kind
from tasks.coding.coder import open_bundle

DECLARES = """
whatever is handed in is taken whole or refused
| mutations of files, bundles, archives, requests, policies, roots and witnesses
(`tests/fuzz/corpus`)
| what has not been tried yet: 10 mutations of each at every commit, 1,500 in `make test-long`
"""

CORPUS = Path(__file__).parent / "corpus"
TABLES = sorted((CORPUS / "tables").iterdir())
REQUESTS = sorted((CORPUS / "requests").iterdir())
POLICIES = sorted((CORPUS / "settings").iterdir())
PLANTED = "PLANTED"
"""Stands in every seed's narratives; no message may hold it."""
KEY = "a key for tests only"
EVERYDAY = 5

TOKENS = [
    *(
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b'"',
        b'""',
        b"\n",
        b"\r",
        b"\r\n",
        b",",
        b";",
        b"\t",
        b"\\",
        b"\x1b]0;x\x07",
    ),
    *(
        b"PK\x03\x04",
        b"PAR1",
        b"NaN",
        b"Infinity",
        b"1e400",
        b"-0",
        b"9" * 400,
        b"[" * 300,
        b"{" * 300,
        b"\\ud800",
    ),
    *(
        b"=1+1",
        b"'",
        b"null",
        b'"":',
        b"\xe2\x80\xae",
        b"\xf0\x9f\x98\x80",
        b"0" * 70_000,
        b"../",
        b"%00",
    ),
]


@st.composite
def mutated(draw: st.DrawFn, seed: bytes) -> bytes:
    """The seed after up to four cuts, copies, changed bytes and tokens put in."""
    content = bytearray(seed)
    for _ in range(draw(st.integers(0, 4))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        end = min(end, start + 4096)
        match draw(st.sampled_from(["cut", "copy", "byte", "token", "end"])):
            case "cut":
                del content[start:end]
            case "copy":
                content[start:start] = content[start:end]
            case "byte" if start < len(content):
                content[start] = draw(st.integers(0, 255))
            case "end":
                del content[start:]
            case _:
                content[start:start] = draw(st.sampled_from(TOKENS))
    return bytes(content)


CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


def fuzzed(holds: Callable[[bytes], None], seed: bytes, examples: int) -> None:
    """Try the seed itself, then its mutations: at every commit always the same."""
    holds(seed)
    everyday = examples == EVERYDAY
    limits = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=everyday,
        suppress_health_check=CHECKS,
    )
    limits(given(mutated(seed))(holds))()


def said(act: Callable[[], Any]) -> Any:
    """What an act returns; None where it is refused in words of ours, which hold nothing of the
    input.
    """
    told = ""
    try:
        return act()
    except StorageError as error:
        told = str(error)
    assert PLANTED not in told
    assert "run again, and report it" not in told
    return None


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", TABLES, ids=lambda path: path.name)
def test_training_takes_a_file_whole_or_not_at_all(seed: Path, examples: int) -> None:
    """Every row that was counted is in a split or among the reasons for leaving out, and is what
    coding counts.
    """
    config = IngestConfig(min_per_code=1, unknown_codes="drop")

    def holds(content: bytes) -> None:
        with TemporaryDirectory() as name:
            file, out = Path(name) / seed.name, Path(name) / "out"
            file.write_bytes(content)
            out.mkdir()
            result = said(lambda: ingest(file, out, config, None))
            if result is None:
                return
            report = result.report
            halves = (load_table(out, file.stem) for file in out.glob("*.arrow"))
            written = sum(half.num_rows for half in halves)
            assert written == result.train + result.test + result.holdout == report["sampled"]
            assert report["rows_counted"] == written + sum(report["dropped"].values())
            assert survey(file, text_columns=["Final Narrative"]).rows == report["rows_counted"]

    fuzzed(holds, seed.read_bytes(), examples)


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", TABLES, ids=lambda path: path.name)
def test_coding_writes_as_many_rows_as_it_read(seed: Path, examples: int) -> None:
    """In every format that it writes, each readable again, JSON strict, no cell a formula."""

    def holds(content: bytes) -> None:
        with TemporaryDirectory() as name:
            file = Path(name) / seed.name
            file.write_bytes(content)
            table = said(lambda: survey(file, text_columns=["Final Narrative"]))
            if table is None:
                return
            for suffix in (".csv", ".jsonl", ".parquet"):
                out = Path(name) / f"out{suffix}"
                if suffix != ".csv" and len(set(table.columns)) < len(table.columns):
                    continue
                with open_writer(out, output_kind(out), table.schema) as write:
                    for piece in pieces(table.read(), columns=len(table.columns)):
                        write(piece)
                if table.rows:
                    assert survey(out, text_columns=[]).rows == table.rows

    fuzzed(holds, seed.read_bytes(), examples)


@pytest.fixture(scope="module")
def archive(sealed: Sealed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(sealed.folder, tmp_path_factory.mktemp("packed") / f"{sealed.folder.name}.tar.zst")


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
def test_an_archive_of_other_bytes_is_no_bundle(
    sealed: Sealed, archive: Path, examples: int
) -> None:
    whole = archive.read_bytes()

    def holds(content: bytes) -> None:
        with TemporaryDirectory() as name:
            file = Path(name) / archive.name
            file.write_bytes(content)
            try:
                with open_folder(file) as folder:
                    check(folder, sealed.trust)
                assert content == whole, "another archive passed"
            except (UnsoundBundle, InputError):
                assert content != whole

    fuzzed(holds, whole, examples)


FILES = ["codelist.csv", "labels.json", "README.md", "golden.jsonl", "2_Dense/model.safetensors"]
FILES += ["0_Transformer/config.json", "0_Transformer/tokenizer.json"]


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "file", [*FILES, "ledger_proof.json", "model.sig", "privacy_statement.json", "bom.cdx.json"]
)
def test_a_bundle_with_one_other_file_is_unsound(
    sealed: Sealed, tmp_path: Path, file: str, examples: int
) -> None:
    """With the signature, and without one: there too every file is read as what it has to be."""
    copy = sealed.copy(tmp_path)
    whole = (copy / file).read_bytes()

    def holds(content: bytes) -> None:
        (copy / file).write_bytes(content)
        for verifier in (sealed.trust, None):
            try:
                check(copy, verifier, unsigned=verifier is None)
                # a signature may be written in more ways than one; without a key the proof's head
                # is not checked
                free = {"model.sig"} if verifier is not None else {"model.sig", "ledger_proof.json"}
                assert content == whole or file in free
            except UnsoundBundle:
                assert content != whole
        (copy / file).write_bytes(whole)

    fuzzed(holds, whole, examples)
    shutil.rmtree(copy)


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", POLICIES, ids=lambda path: path.name)
def test_a_policy_is_what_is_written(seed: Path, examples: int) -> None:
    """Refused, or every population and cohort that is written has its own caps, and the ledger's
    copy is the same.
    """

    def holds(content: bytes) -> None:
        with TemporaryDirectory() as name:
            file = Path(name) / seed.name
            file.write_bytes(content)
            policy = said(lambda: Policy.load(file))
        if policy is None:
            return
        assert Policy.parse(policy.as_json()) == policy
        events = list(yaml.parse(content.decode("utf-8-sig")))
        written = {event.value for event in events if isinstance(event, yaml.ScalarEvent)}
        assert {
            *policy.populations,
            *(c for one in policy.populations.values() for c in one.cohorts),
        } <= written

    fuzzed(holds, seed.read_bytes(), examples)


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
def test_other_roots_are_not_believed(tmp_path: Path, examples: int) -> None:
    """Refused, or the root is one that the keys signed."""
    old, new = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    first = (Root.first(old.public_key()).signed_by(old),)
    chain = sign_newest(with_next_root(first, release_keys=[new.public_key()], days=9), old)
    write_roots(tmp_path / "roots.json", chain)
    signed = {root.digest for root in chain}

    def holds(content: bytes) -> None:
        with TemporaryDirectory() as name:
            file = Path(name) / "roots.json"
            file.write_bytes(content)
            trust = Trust(old.public_key(), file, Path(name) / "state")
            try:
                root = trust.load()
            except (UnsoundBundle, InputError):
                assert content != whole
            else:
                assert root.digest in signed

    whole = (tmp_path / "roots.json").read_bytes()
    fuzzed(holds, whole, examples)


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
def test_other_lines_of_a_witness_accept_no_other_ledger(tmp_path: Path, examples: int) -> None:
    """A ledger from a backup is accepted by no witness that has all lines; one that has fewer is
    not noticed.
    """
    witness, place = Journal(tmp_path / "witness"), tmp_path / "ledger.db"
    for number in range(4):
        if number == 2:
            shutil.copy(place, tmp_path / "backup.db")
        ledger = Ledger.open(f"sqlite:///{place}", key=release_key(), journals=(witness,))
        ledger.reserve(
            make_plan(f"k{number}", ledger=ledger.ensure_genesis_row(requester="operator"))
        )
    whole = witness.file.read_bytes()
    written = {(row.sequence, row.hash) for row in witness.rows()}
    engines = [sa.create_engine(f"sqlite:///{file}") for file in (place, tmp_path / "backup.db")]

    def holds(content: bytes) -> None:
        with (
            TemporaryDirectory() as name,
            engines[0].connect() as current,
            engines[1].connect() as older,
        ):
            file = Path(name) / "witness"
            file.write_bytes(content)
            accepted = [
                said(lambda at=at: Journal(file).problem(at) or "accepted")
                for at in (current, older)
            ]
            assert accepted[1] != "accepted" or not content.startswith(whole)
            if "accepted" in accepted and (last := Journal(file).last()) is not None:
                assert (last.sequence, last.hash) in written
            assert content != whole or accepted[0] == "accepted"

    fuzzed(holds, whole, examples)


@pytest.fixture(scope="module")
def client(tiny_bundle: Path) -> Iterator[TestClient]:
    state = State(Clients.of({"tests": KEY}))
    app = create_app(open_bundle(tiny_bundle), Settings(state=state))
    with TestClient(app) as opened_client:
        yield opened_client


@pytest.mark.parametrize("examples", [EVERYDAY, pytest.param(1500, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", REQUESTS, ids=lambda path: path.name)
def test_the_service_replies(
    client: TestClient, capfd: pytest.CaptureFixture[str], seed: Path, examples: int
) -> None:
    """Never a failure of its own, always strict JSON, and nothing of a narrative in an answer or on
    the terminal.
    """

    def refuse(name: str) -> None:
        raise AssertionError(name)

    def holds(content: bytes) -> None:
        headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
        answer = client.post("/code", content=content, headers=headers)
        assert answer.status_code in {200, 400, 413, 422}, answer.text
        told = json.loads(answer.content, parse_constant=refuse)
        assert ("results" in told) is (answer.status_code == 200)
        assert PLANTED not in answer.text

    fuzzed(holds, seed.read_bytes(), examples)
    out = capfd.readouterr()
    assert PLANTED not in out.out + out.err
