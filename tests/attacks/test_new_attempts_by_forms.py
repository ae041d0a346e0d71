"""Would win: another ledger, key, folder or program for a run, by what an operator types into
Prefect's form, a file of settings, or the environment of a worker.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.schema_tools.validation import validate
from pydantic import ValidationError
from sealed_bundle import Sealed

from flows.server.form import FormalForm
from flows.server.settings import home_of
from storage import strict_yaml
from storage.bundle.folder import UnsoundBundle
from storage.bundle.trust import read_roots
from storage.durable import own_folder
from storage.egress.documents import strict_json
from storage.errors import InputError, StorageError
from storage.ledger import Decision, Ledger, Policy
from storage.paths import Workspace
from tasks.parameters import BundleParameters
from tasks.releasing import publish
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

DECLARES = """
a form, a file of settings or the environment sends no run elsewhere
| 18 values for a release's id and 17 for a plan and a folder, in each form that asks for one; 8
kinds of templates of Prefect in five fields, and its own kinds of values; 62 texts of YAML; 31
documents of JSON for five readers; 22 keys, folders and addresses in the environment; 8 locales
| who may edit deployments or their job variables runs programs on workers: they are one domain of
trust
"""

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = {
    one["name"]: one
    for one in yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
}
RELEASE = "0123456789abcdef"
SOUND: dict[str, dict[str, Any]] = {
    "release": {"plan": "/w/private/plans/p.json"},
    "audit": {"plan": "/w/private/plans/p.json"},
    "handover": {"release": RELEASE, "partner": "Office", "folder": "/outbox"},
    "revoke": {"release": RELEASE, "reason": "wrong", "folder": "/outbox"},
}
NO_TEXT = [None, 1, True, [], {}, [RELEASE], {"a": "b"}]
NO_RELEASE = [
    "",
    "..",
    "../keys",
    RELEASE[:-1],
    f"{RELEASE}0",
    RELEASE.upper(),
    f"{RELEASE}\n",
    f"\n{RELEASE}",
    f"{RELEASE}/..",
    "\uff10" * 16,
    "{{ release }}",
]
NO_PATH = ["", "outbox", "../outbox", "./x", "file:///outbox", "C:/x", " /outbox", "\n/", "$HOME/x"]
NO_PATH += ["{{ x }}"]


def flow_of(name: str) -> Any:
    return load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"])


def taken(name: str, values: dict[str, Any]) -> bool:
    """Whether the server's check of the form and the run's own let it pass."""
    flow = flow_of(name)
    if validate(values, flow.parameters.model_dump()):
        return False
    try:
        flow.validate_parameters(values)
    except Exception:  # of Prefect's own kind
        return False
    return True


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *((n, "release", v) for n in ("handover", "revoke") for v in (*NO_RELEASE, *NO_TEXT)),
        *((n, "plan", v) for n in ("release", "audit") for v in (*NO_PATH, *NO_TEXT)),
        *((n, "folder", v) for n in ("handover", "revoke") for v in (*NO_PATH, *NO_TEXT)),
    ],
)
def test_a_form_that_leads_elsewhere(name: str, field: str, value: Any) -> None:
    assert taken(name, SOUND[name]), "the control"
    assert not taken(name, SOUND[name] | {field: value})


TEMPLATES = [
    "{{ prefect.variables.key }}",
    "{{ prefect.blocks.secret.x }}",
    "{{ $AUTOCODER_SIGNING_KEY }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{% endfor %}",
    "{release.__class__.__init__.__globals__}",
    "%(release)s",
    "${HOME}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("field", ["partner", "reason", "release", "plan", "folder"])
def test_a_template_stays_a_text(template: str, field: str) -> None:
    """Where a text is free it is the text that a partner reads, also in the run's name."""
    name = next(name for name, values in SOUND.items() if field in values)
    values = SOUND[name] | {field: template}
    if field not in ("partner", "reason"):
        assert not taken(name, values)
        return
    assert taken(name, values)
    flow = flow_of(name)
    assert flow.validate_parameters(values)[field] == template
    if isinstance(flow.flow_run_name, str):
        assert flow.flow_run_name.format(**values).endswith(values.get("partner", RELEASE))


@pytest.mark.parametrize("kind", ["json", "jinja", "workspace_variable", "none", "block"])
@pytest.mark.parametrize("field", ["release", "plan"])
def test_values_of_prefects_own_kinds(kind: str, field: str) -> None:
    name = next(name for name, values in SOUND.items() if field in values)
    value = {"__prefect_kind": kind, "value": '"x"', "template": "x", "variable_name": "x"}
    assert not taken(name, SOUND[name] | {field: value})


# -- the YAML of a form

DEEP = "a: " + "[" * 200 + "]" * 200
BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
)
ADVANCED = [
    "release: {ledger_url: 'sqlite:////tmp/x'}",
    "release: {ledger: x}",
    "release: {database: x}",
    "release: {witness: x}",
    "ledger: sqlite:///x",
    "ledger: {url: x}",
    "storage: s3://x",
    "run: {ledger: x}",
    "run: {storage: x}",
    "run: {key: x}",
    "run: {env: {PATH: /tmp}}",
    "run: {command: id}",
    "run: {working_dir: /}",
    "run: {processes: 0}",
    "run: {processes: 100000}",
    "run: {device: ../x}",
    "run: [home]",
    "run: x",
    "env: {AUTOCODER_SIGNING_KEY: /tmp/k}",
    "job_variables: {env: {}}",
    "entrypoint: os.system",
    "pull: [{run_shell_script: id}]",
    "profile: ../../etc/passwd",
    "profile: /etc/passwd",
    "profile: 'formal\\0'",
    "profile: [formal]",
    "profile: {a: b}",
    "profile: 7",
    "profile: '{{ x }}'",
    "data: {source: /etc/shadow}",
    "data: {population: other}",
    "data: {ingest: {label_column: x}}",
    "data: {ingest: {text_columns: [x]}}",
    "method: {target_epsilon: 900000}",
    "method: {delta: .nan}",
    "method: {delta: .inf}",
    "method: {delta: -1}",
    "method: {delta: 2}",
    "method: {name: ../x}",
    "model: {encoder: ''}",
    "model: {prior_sentence: 'no place for a title'}",
    "model: {lexical_language: ../x}",
    "model: {max_length: -1}",
    "!!python/object/apply:os.system [id]",
    "release: !!python/object/apply:os.system [id]",
    "a: !!python/name:os.system ''",
    "a: !!python/module:os ''",
    "a: !!python/object/new:subprocess.Popen [[id]]",
    "a: !!js/function 'x'",
    "a: !ruby/object:Gem::Installer {}",
    "a: !!set {x}",
    "run: {home: /w}\nrun: {home: /x}",
    "release: {policy: a, policy: b}",
    "<<: {release: {ledger_url: x}}",
    "? [a]\n: b",
    "1: 2",
    "null: 1",
    "true: 1",
    "---\na: 1\n---\nb: 2",
    "\x00",
    DEEP,
    BOMB,
]


@pytest.mark.parametrize("text", ADVANCED, ids=range(len(ADVANCED)))
def test_settings_that_send_a_run_elsewhere(text: str) -> None:
    """Before any process starts; what is not a setting of the program is no setting of the form."""
    fields: dict[str, Any] = {"source": "/r.csv", "codelist": "/c.csv", "text_columns": ["T"]}
    fields |= {"label_column": "C", "population": "own", "target_epsilon": 3}
    FormalForm.model_validate(fields)
    with pytest.raises((ValidationError, InputError)):
        FormalForm.model_validate(fields | {"advanced": text})


# -- JSON and YAML of files

TWICE = '{"a": 1, "a": 2}'
JSON = [
    TWICE,
    '{"schema_version": 1, "schema_version": 1}',
    '{"plan": {}, "plan": {}}',
    "[" * 100_000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    '{"a": ' + "9" * 5000 + "}",
    '{"a": 1e999}',
    '{"a": -1e999}',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": 0x10}',
    '{"a": 01}',
    '{"a": +1}',
    '{"a": .5}',
    "{'a': 1}",
    '{"a": 1,}',
    '{"a": 1} {"b": 2}',
    '{"a": 1}x',
    "// comment\n{}",
    "\ufeff{}",
    '{"a": "\\ud800"}',
    '{"a": "\x00"}',
    "null",
    "true",
    "1",
    '"text"',
    "[]",
    "{}",
    "",
    "\x00",
    " " * 1000,
]


def parsed_plan(file: Path) -> None:
    PlannedRelease.load(file)


def parsed_decision(file: Path) -> None:
    Decision.read(file.read_text(encoding="utf-8"))


def parsed_policy(file: Path) -> None:
    Policy.load(file)


def parsed_roots(file: Path) -> None:
    read_roots(file)


@pytest.mark.parametrize("read", [parsed_plan, parsed_decision, parsed_policy, parsed_roots])
@pytest.mark.parametrize("text", JSON, ids=range(len(JSON)))
def test_a_document_that_reads_in_two_ways(
    tmp_path: Path, read: Callable[[Path], None], text: str
) -> None:
    """Refused as the file that it is, by its own kind of error."""
    file = tmp_path / "document"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises((InputError, StorageError)):
        read(file)


@pytest.mark.parametrize("text", [*JSON[:3], *JSON[3:21]], ids=range(21))
def test_json_of_a_bundle_that_reads_in_two_ways(text: str) -> None:
    """No number beyond a float, no key twice, nothing but JSON: refused, or one value for every
    reader, which the schema then checks.
    """
    try:
        value = strict_json("x.json", text.encode("utf-8", "surrogatepass"))
    except UnsoundBundle:
        return
    assert json.loads(text) == value
    assert text.count('"a"') < 2


@pytest.mark.parametrize(
    "text",
    ["a: 1\na: 2", "a: {b: 1, b: 2}", "a: 1\n'a': 2", 'a: 1\n"\\x61": 2', BOMB, DEEP],
)
def test_yaml_that_reads_in_two_ways(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        strict_yaml.load(text)


# -- the environment


def pem(key: Any, encryption: Any = serialization.NoEncryption()) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def keys() -> dict[str, bytes]:
    own = ec.generate_private_key(ec.SECP256R1())
    public = own.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return {
        "nothing": b"",
        "a public key": public,
        "two keys": pem(own) + public,
        "another curve": pem(ec.generate_private_key(ec.SECP384R1())),
        "RSA": pem(rsa.generate_private_key(65537, 2048)),
        "with a password": pem(own, serialization.BestAvailableEncryption(b"x")),
        "cut off": pem(own)[:-40],
        "noise": os.urandom(200),
        "large": b"a" * (9 << 20),
    }


@pytest.mark.parametrize("name", [*keys(), "a folder", "a pipe", "a device", "absent"])
def test_a_signing_key_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In AUTOCODER_SIGNING_KEY: refused at once, and no key is made in its place."""
    file = tmp_path / "key"
    if name in keys():
        file.write_bytes(keys()[name])
        file.chmod(0o600)
    elif name == "a folder":
        file.mkdir()
    elif name == "a pipe":
        os.mkfifo(file)
    elif name == "a device":
        file.symlink_to("/dev/zero")
    monkeypatch.setenv("AUTOCODER_SIGNING_KEY", str(file))
    context = Context(home=str(tmp_path / "home"))
    with pytest.raises((InputError, StorageError)):
        publish.check_signing(context, BundleParameters())
    assert not (tmp_path / "home").exists()


def test_a_form_takes_no_other_key_than_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's form has a field for a key; on a machine with a key of its own
    it is refused.
    """
    for name in ("machine", "operator"):
        (tmp_path / name).write_bytes(pem(ec.generate_private_key(ec.SECP256R1())))
        (tmp_path / name).chmod(0o600)
    monkeypatch.setenv("AUTOCODER_SIGNING_KEY", str(tmp_path / "machine"))
    context = Context(home=str(tmp_path / "home"))
    publish.check_signing(context, BundleParameters())
    with pytest.raises(InputError):
        other = BundleParameters(signing_key=str(tmp_path / "operator"))
        publish.check_signing(context, other)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////dev/full",
        "sqlite:////proc/self/mem",
        "mysql://u:secret@h/d",
        "postgresql://u:secret@127.0.0.1:1/d",
        "postgresql+psycopg://u:secret@127.0.0.1:1/d",
        "oracle://u:secret@h/d",
        "file:///secret",
        "://secret",
        "sqlite:////nowhere/secret/ledger.db",
    ],
)
def test_an_address_of_a_ledger_is_in_no_message(url: str) -> None:
    with pytest.raises((InputError, StorageError)) as refused:
        Ledger.open(url).rows()
    assert "secret@" not in str(refused.value)
    assert "u:secret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o777, 0o772, 0o722, 0o720])
def test_a_folder_for_temporary_files_that_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """In TMPDIR: what a release has read would be theirs. With the sticky bit it is taken."""
    tmp_path.chmod(mode)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(StorageError), own_folder("release"):
        pass
    tmp_path.chmod(mode | stat.S_ISVTX)
    with own_folder("release") as own:
        assert stat.S_IMODE(own.stat().st_mode) == 0o700


@pytest.mark.parametrize("home", ["/dev/null", "/etc/passwd"])
def test_a_workspace_that_is_no_folder(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("AUTOCODER_HOME", home)
    with pytest.raises(InputError):
        home_of(None)


LOCALES: list[dict[str, str]] = [
    {"LC_ALL": "C"},
    {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "tr_TR.UTF-8"},
    {"LC_ALL": "ar_EG.UTF-8"},
    {"LC_ALL": "xx_XX.nothing"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "utf-16"},
    {"LANG": "", "LANGUAGE": "", "LC_ALL": ""},
]


@pytest.mark.parametrize("locale", LOCALES, ids=range(len(LOCALES)))
def test_a_bundle_is_the_same_in_every_locale(sealed: Sealed, locale: dict[str, str]) -> None:
    """`verify` says the same, by its exit code, whatever the terminal can show."""
    command = [sys.executable, "-m", "flows.cli", "verify", str(sealed.folder), "--no-golden"]
    command += ["--key", str(sealed.home / "signing-key.pub.pem"), "--json"]
    done = subprocess.run(command, env=os.environ | locale, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-500:]
    encoding = locale.get("PYTHONIOENCODING", "utf-8")
    assert json.loads(done.stdout.decode(encoding))["release_id"] == sealed.row.release_id


def test_a_workspace_is_made_closed(tmp_path: Path) -> None:
    private = Workspace(tmp_path / "home").create().private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
