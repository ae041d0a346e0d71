"""Defines `autocoder serve`: a released bundle over HTTP."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import bundle_options, options
from flows.commands.codelist_options import CodelistOptions
from flows.commands.terminal import say
from flows.server.settings import home_of
from storage.errors import Contradiction, InputError, Missing, OutOfRange, StorageError, Unreadable
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from service.clients import Clients, State
    from storage.bundle.check import VerifiedBundle
    from storage.bundle.trust import Trust
    from tasks.coding.coder import Coder

KEY = "AUTOCODER_API_KEY"
_MOST_CONNECTIONS = 512
"""Maximum number of connections, well below a process's usual limit of 1,024 files.
Further ones get a 503.
"""


def serve(
    released: bundle_options.BundleOptions,
    start: CodelistOptions,
    key: bundle_options.Key = None,
    roots: bundle_options.Roots = None,
    allow_unsigned: bundle_options.AllowUnsigned = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8321,
    proxy: Annotated[
        str | None,
        typer.Option(
            help=(
                "Address of the reverse proxy in front of the service, which reports "
                "the client's address."
            )
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name that clients use, in addition to --host; repeatable."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        options.privacy(
            help="File with one API key, or with a line NAME KEY per client.",
            show_default=f"${KEY}",
        ),
    ] = None,
    no_key: Annotated[
        bool,
        options.privacy("--no-key", help="Require no API key. Only allowed on a loopback address."),
    ] = False,
    sensitive: Annotated[
        Path | None,
        options.more(
            help=("Public CSV with a column code. Its codes are shown first in the review.")
        ),
    ] = None,
    descriptions: Annotated[
        Path | None,
        options.data(
            help=(
                "Public code list with a column description, which the review searches. "
                "Default: the list of --codelist."
            )
        ),
    ] = None,
) -> None:
    r"""Serve a released model, or a code list's titles, over HTTP, with a page to try it.

    The bundle is verified before the port opens. Keys and the agency's roots are read again while
    it runs: a removed client is refused, and a revoked release no longer codes. Requests are not
    logged. SIGTERM and Ctrl-C let running requests end.

    To accept connections from other machines, put a reverse proxy that terminates TLS and enforces
    timeouts in front of it, and pass its address with --proxy. deployments/serve.Caddyfile is one.

    Examples

      autocoder serve --bundle bundles/3f2a9c41d07b65e8 \
          --key signing-key.pub.pem --api-key-file key.txt

      autocoder serve --bundle bundles/3f2a9c41d07b65e8 \
          --key signing-key.pub.pem --api-key-file key.txt \
          --proxy 127.0.0.1 --allowed-host coder.agency.example

      autocoder serve --allow-unsigned --no-key

      autocoder serve --codelist soc2020.csv --no-key
    """
    start.require_alone(bundle=released.bundle is not None)
    if start.codelist is not None and (key or roots or allow_unsigned):
        raise Contradiction(
            "--key, --roots and --allow-unsigned apply to a bundle, not to --codelist",
            kind="bundle-options",
        )
    if proxy is None and not _loopback(host):
        raise Contradiction(
            f"--host {host} can be reached from elsewhere. Put a proxy in front of it and pass its "
            "address with --proxy.",
            kind="open-host",
        )
    if wrong := [
        name for name in allowed_host or () if not re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", name)
    ]:
        raise OutOfRange(
            f"--allowed-host {wrong[0]!r} is not a host name. Expected one without port or `*`.",
            kind="host-name",
        )
    _require_free(host, port)
    clients = _clients(api_key_file, no_key=no_key, host=host)
    adopted = released.adopted()
    trust = bundle_options.trust(key, roots)
    if trust is None and adopted is not None and not allow_unsigned:
        trust = adopted.trust
    if trust is None and not allow_unsigned and start.codelist is None:
        raise Missing(
            "no trusted key. Pass the agency's public key with --key, or use --allow-unsigned.",
            kind="no-trusted-key",
        )
    thresholds = None if adopted is None else adopted.thresholds
    with private_errors("serve"):
        import uvicorn

        from service.app import Settings, create_app
        from service.clients import State
        from tasks.coding.coder import read_sensitive

        sound = None
        if start.codelist is not None:
            coder: Coder = start.coder(home_of(released.home), read=options.read_options(None))
        else:
            sound, coder = _checked(released, trust, thresholds, unsigned=allow_unsigned)
        coder.scores(["warm"])
        watch = Watch(State(clients), api_key_file if clients else None, trust, sound)
        hosts = ("localhost", "127.0.0.1", "[::1]", "::1", host, *(allowed_host or ()))
        wanted = adopted.adoption.accuracy if adopted is not None else None
        settings = Settings(
            accuracy=wanted or Settings.accuracy,
            state=watch.state,
            renew=watch,
            hosts=hosts,
            signed_by=None if sound is None else sound.signed_by,
            descriptions=_descriptions(descriptions or start.codelist),
            sensitive=() if sensitive is None else read_sensitive(sensitive, coder),
        )
        config = uvicorn.Config(
            create_app(coder, settings),
            host=host,
            port=port,
            access_log=False,
            log_level="warning",
            http="h11",
            limit_concurrency=_MOST_CONNECTIONS,
            proxy_headers=proxy is not None,
            forwarded_allow_ips=proxy or "",
            server_header=False,
            timeout_graceful_shutdown=30,
        )
        address = f"http://{host}:{port}/"
        say(f"{coder.classification} {coder.version}, {coder.label}: {address}", err=True)
        uvicorn.Server(config).run()


def _checked(
    released: bundle_options.BundleOptions,
    trust: Trust | None,
    thresholds: Path | None,
    *,
    unsigned: bool,
) -> tuple[VerifiedBundle, Coder]:
    from storage.bundle.check import check
    from tasks.coding.coder import open_bundle, require_not_revoked

    with released.opened() as folder:
        sound = check(folder, trust, unsigned=unsigned)
        coder = open_bundle(folder, thresholds=thresholds, precision="auto")
    require_not_revoked(coder, home_of(released.home))
    return sound, coder


def _descriptions(file: Path | None) -> dict[str, str]:
    from storage.codelist import read_codelist

    if file is None:
        return {}
    codes = read_codelist(file.expanduser(), option="--descriptions")
    return {code.code: code.description for code in codes if code.description}


def _require_free(host: str, port: int) -> None:
    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        # some addresses of a host name may not exist on this machine, such as ::1 without IPv6
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise InputError(
                f"--host {host}, --port {port}: {error.strerror}. Choose another.",
                kind="port-in-use",
            ) from None


def _clients(file: Path | None, *, no_key: bool, host: str) -> Clients | None:
    from service.clients import Clients

    if no_key:
        if not _loopback(host):
            raise Contradiction(
                f"--no-key: {host} can be reached from elsewhere. Set an API key, or use --host "
                "127.0.0.1.",
                kind="open-without-key",
            )
        return None
    if file is None and not os.environ.get(KEY, "").strip():
        raise Missing(
            f"no API key. Set one with --api-key-file or ${KEY}, or use --no-key for this machine "
            "only.",
            kind="no-api-key",
        )
    try:
        text = file.expanduser().read_text(encoding="utf-8") if file else os.environ[KEY]
    except (OSError, UnicodeDecodeError):
        raise Unreadable(
            f"--api-key-file: {file} cannot be read", kind="unreadable-key-file"
        ) from None
    try:
        return Clients.read(text)
    except ValueError as error:
        place = f"--api-key-file: {file}" if file else f"${KEY}"
        raise InputError(f"{place}: {error}", kind="api-key-form") from None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Watch:
    """Reads the file of keys and the agency's roots again.

    A file that cannot be read is reported on stderr and changes nothing. Coding stops if a root
    revokes the bundle, is forged or has expired.
    """

    def __init__(
        self, state: State, keys: Path | None, trust: Trust | None, sound: VerifiedBundle | None
    ) -> None:
        self.state, self._keys, self._trust, self._sound = state, keys, trust, sound
        root = None if sound is None else sound.root
        self._last_note, self._last_day = "", None if root is None else root.expires_on

    def __call__(self) -> State:
        from storage.bundle.folder import UnsoundBundle

        clients, withdrawn = self.state.clients, None
        try:
            if self._keys is not None:
                clients = _clients(self._keys, no_key=False, host="")
            self._read_roots()
            self._last_note = ""
        except UnsoundBundle as fault:
            withdrawn = f"nothing is coded: {fault.problem}"
        except (StorageError, OSError) as error:
            withdrawn = self.state.withdrawn
            if self._last_day is not None and datetime.now(UTC).date().isoformat() > self._last_day:
                withdrawn = "coding stopped: the agency's roots have expired"
            self._note(str(error))
        self.state = type(self.state)(clients, withdrawn)
        return self.state

    def _read_roots(self) -> None:
        if self._sound is not None and self._trust is not None and self._trust.roots is not None:
            root = self._trust.load()
            root.check(self._sound.release_id, self._sound.digest, self._sound.key)
            self._last_day = root.expires_on

    def _note(self, problem: str) -> None:
        if problem != self._last_note:
            say(f"note: {problem}", err=True)
        self._last_note = problem
