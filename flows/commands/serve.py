"""`autocoder serve`: a released bundle behind HTTP."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say

if TYPE_CHECKING:
    from service.clients import Clients, State
    from storage.bundle.check import Sound

KEY = "AUTOCODER_API_KEY"


@dataclass(frozen=True)
class TlsOptions:
    """HTTPS, where both are given."""

    tls_certificate: Annotated[Path | None, typer.Option(help="Serve HTTPS: PEM file.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None


@dataclass(frozen=True)
class TrustOptions:
    """Whose bundle is served."""

    verify_key: Annotated[Path | None, typer.Option(help="Public key (PEM) that must have signed the bundle.")] = None
    root: options.Root = None
    repository: options.Repository = None
    state: options.State = None
    revocations: options.Revocations = None
    allow_unsigned: Annotated[
        bool, typer.Option("--allow-unsigned", help="Serve a bundle without a checked signature; all else is checked.")
    ] = False


def serve(
    released: options.BundleOptions,
    trust: TrustOptions,
    tls: TlsOptions,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8321,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the API key, or a line NAME KEY for each client.", show_default=f"${KEY}"),
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Ask for no API key; only on a loopback address.")] = False,
    rate: Annotated[int, typer.Option(min=1, help="Narratives a minute of one client.")] = 6000,
    thresholds: options.Thresholds = None,
    rules: Annotated[
        Path | None,
        typer.Option(help="CSV field, code, other_field, other_code: what never occurs together wants a look."),
    ] = None,
    precision: options.Precision = "auto",
) -> None:
    """Serve a released model over HTTP, with a page to try it.

    The bundle is verified before the port opens. Keys, revocations and the agency's list are read again while it runs:
    a client that was taken out is refused, and a release that was revoked codes no more. Requests are not logged.
    SIGTERM and Ctrl-C let running requests end. Needs the extra `serve`.

    [bold]Examples[/bold]

      autocoder serve --bundle bundles/3f2a9c41d07b65e8 --verify-key agency.pub.pem --api-key-file key.txt

      autocoder serve --allow-unsigned --no-key
    """
    from storage.errors import InputError
    from tasks.running.failures import private_errors

    _check_tls(tls)
    _require_free(host, port)
    clients = _clients(api_key_file, no_key=no_key, host=host)
    with private_errors("serve"):
        try:
            import uvicorn

            from service.app import Settings, create_app
            from service.clients import State
            from service.connections import Connection
        except ImportError:
            raise InputError("serve needs uvicorn and limits; install the extra: pip install '.[serve]'") from None
        from tasks.coding.joint import open_bundle

        with released.opened() as folder:
            sound = _verified(folder, trust)
            coder = open_bundle(folder, thresholds=thresholds or (), precision=precision, rules=rules)
        released.require_standing(coder)
        coder.scores(["warm"])
        watch = Watch(State(clients), api_key_file if clients else None, trust, sound)
        settings = Settings(state=watch.state, renew=watch, narratives_per_minute=rate, signed_by=sound.signed_by)
        config = uvicorn.Config(
            create_app(coder, settings),
            host=host,
            port=port,
            access_log=False,
            log_level="warning",
            http=Connection,
            server_header=False,
            timeout_graceful_shutdown=30,
            ssl_certfile=tls.tls_certificate,
            ssl_keyfile=tls.tls_key,
        )
        address = f"{'https' if tls.tls_certificate else 'http'}://{host}:{port}/"
        say(f"{coder.classification} {coder.version}, release {coder.release}: {address}", err=True)
        uvicorn.Server(config).run()


def _require_free(host: str, port: int) -> None:
    """Try the port before a model is loaded; whatever else may be wrong with it is told by the server."""
    from storage.errors import InputError

    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        # of a name's addresses some may not be this machine's, such as ::1 where there is no IPv6
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise InputError(f"--host {host}, --port {port}: {error.strerror}; choose another") from None


def _check_tls(tls: TlsOptions) -> None:
    """Try both files before a model is loaded and an address said."""
    from storage.errors import InputError

    certificate, key = tls.tls_certificate, tls.tls_key
    if (certificate is None) != (key is None):
        raise InputError("--tls-certificate and --tls-key go together")
    if certificate is None or key is None:
        return
    for option, path in (("--tls-certificate", certificate), ("--tls-key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise InputError(f"{option} {path}: {error.strerror}") from None
    try:
        # with a password, since for an encrypted key without one it would be asked for on the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise InputError(
            f"--tls-certificate {certificate}: with --tls-key {key} it is no certificate and its unencrypted key in PEM"
        ) from None


def _clients(file: Path | None, *, no_key: bool, host: str) -> Clients | None:
    from service.clients import Clients
    from storage.errors import InputError

    if no_key:
        if not _loopback(host):
            raise InputError(f"--no-key: {host} can be reached from elsewhere; give an API key, or --host 127.0.0.1")
        return None
    if file is None and not os.environ.get(KEY, "").strip():
        raise InputError(f"give an API key by --api-key-file or ${KEY}, or --no-key on this machine alone")
    try:
        text = file.expanduser().read_text(encoding="utf-8") if file else os.environ[KEY]
    except (OSError, UnicodeDecodeError):
        raise InputError(f"--api-key-file: {file} cannot be read") from None
    try:
        return Clients.read(text)
    except ValueError as error:
        raise InputError(f"{f'--api-key-file: {file}' if file else f'${KEY}'}: {error}") from None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _verified(folder: Path, trust: TrustOptions) -> Sound:
    """Check the bundle; what holds of it."""
    from storage.bundle.check import check
    from storage.bundle.signing import Verifier
    from storage.errors import InputError

    if trust.verify_key is None and trust.root is None and not trust.allow_unsigned:
        raise InputError(
            "give the agency's root by --root, its public key by --verify-key, or serve unsigned with --allow-unsigned"
        )
    verifier = Verifier(trust.verify_key.expanduser()) if trust.verify_key is not None else None
    agency = options.trust(trust.root, trust.repository, trust.state)
    listing = None if agency is None else agency.listing()
    return check(folder, verifier, listing=listing, revocations=trust.revocations, unsigned=trust.allow_unsigned)


class Watch:
    """Looks again at the file of keys, the revocations and the agency's list.

    A file that cannot be read just now changes nothing and is told on stderr: the service keeps to what it knows. A
    list that says that the bundle is revoked, or whose time is over, ends the coding.
    """

    def __init__(self, state: State, keys: Path | None, trust: TrustOptions, sound: Sound) -> None:
        self.state, self._keys, self._trust, self._sound = state, keys, trust, sound
        self._newest, self._told = sound.revocations or 0, ""
        self._good_until: datetime | None = None

    def __call__(self) -> State:
        """What holds now."""
        from storage.bundle.folder import UnsoundBundle
        from storage.errors import StorageError

        clients, withdrawn = self.state.clients, None
        try:
            if self._keys is not None:
                clients = _clients(self._keys, no_key=False, host="")
            self._look()
            self._told = ""
        except UnsoundBundle as fault:
            withdrawn = f"nothing is coded: {fault.problem}"
        except (StorageError, OSError) as error:
            withdrawn = self.state.withdrawn
            if self._good_until is not None and datetime.now(UTC) > self._good_until:
                withdrawn = "nothing is coded: the agency's list is out of date"
            self._tell(str(error))
        self.state = type(self.state)(clients, withdrawn)
        return self.state

    def _look(self) -> None:
        from storage.bundle.revocations import Revocations
        from storage.errors import InputError

        agency = options.trust(self._trust.root, self._trust.repository, self._trust.state)
        if agency is not None:
            listing = agency.listing()
            self._good_until = listing.expires
            listing.check(self._sound.release_id, self._sound.digest)
        if self._trust.revocations is not None and self._sound.key is not None:
            listed = Revocations.load(self._trust.revocations, key=self._sound.key)
            if listed.number < self._newest:
                raise InputError(f"--revocations {self._trust.revocations}: older than the one that was read before")
            self._newest = listed.number
            listed.check(self._sound.release_id, self._sound.digest)

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            say(f"note: {problem}", err=True)
        self._told = problem
