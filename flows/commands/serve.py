"""`autocoder serve`: a released bundle behind HTTP."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.code import BUNDLE
from flows.server.settings import home_of

KEY = "AUTOCODER_API_KEY"
_SHORTEST_KEY = 16


def serve(
    bundle: Annotated[Path | None, BUNDLE] = None,
    home: options.Home = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8321,
    verify_key: Annotated[
        Path | None, typer.Option("--verify-key", help="Public key (PEM) that must have signed the bundle.")
    ] = None,
    revocations: Annotated[
        Path | None, typer.Option("--revocations", help="The agency's signed list of revoked releases.")
    ] = None,
    allow_unsigned: Annotated[
        bool, typer.Option("--allow-unsigned", help="Serve a bundle without a checked signature; all else is checked.")
    ] = False,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help=f"File with the API key. [default: ${KEY}]")
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Ask for no API key; only on a loopback address.")] = False,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Narratives a minute of one client.")] = 6000,
    thresholds: Annotated[
        Path | None, typer.Option("--thresholds", help="File from `autocoder calibrate`, in place of the bundle's own.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="Serve HTTPS: PEM file.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Private key of the certificate.")] = None,
) -> None:
    """Serve a released model over HTTP, with a page to try it.

    The bundle is verified before the port opens. Requests are not logged. SIGTERM and Ctrl-C let running requests end.
    Needs the extra `serve`.

    [bold]Examples[/bold]

      autocoder serve --bundle bundles/3f2a9c41d07b65e8 --verify-key agency.pub.pem --api-key-file key.txt

      autocoder serve --allow-unsigned --no-key
    """
    from storage.errors import InputError
    from tasks.running.failures import private_errors

    if (tls_certificate is None) != (tls_key is None):
        raise InputError("--tls-certificate and --tls-key go together")
    if tls_certificate is not None and tls_key is not None:
        _check_tls(tls_certificate, tls_key)
    key = _key(api_key_file, no_key=no_key, host=host)
    with private_errors("serve"):
        try:
            import uvicorn

            from service.app import Settings, create_app
            from service.connections import Connection
        except ImportError:
            raise InputError("serve needs uvicorn and limits; install the extra: pip install '.[serve]'") from None
        from storage.bundle.archive import opened
        from tasks.coding.coder import Coder, newest_bundle

        with opened(bundle.expanduser() if bundle is not None else newest_bundle(home_of(home))) as folder:
            signed_by = _verified(folder, verify_key, revocations, allow_unsigned=allow_unsigned)
            coder = Coder.open(folder, thresholds=thresholds)
        coder.scores(["warm"])
        app = create_app(coder, Settings(key=key, narratives_per_minute=rate, signed_by=signed_by))
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            access_log=False,
            log_level="warning",
            http=Connection,
            server_header=False,
            timeout_graceful_shutdown=30,
            ssl_certfile=tls_certificate,
            ssl_keyfile=tls_key,
        )
        scheme = "https" if tls_certificate else "http"
        typer.echo(
            f"{coder.classification} {coder.version}, release {coder.release}: {scheme}://{host}:{port}/", err=True
        )
        uvicorn.Server(config).run()


def _check_tls(certificate: Path, key: Path) -> None:
    """Try both before a model is loaded and an address told."""
    from storage.errors import InputError

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


def _key(file: Path | None, *, no_key: bool, host: str) -> str | None:
    from storage.errors import InputError

    if no_key:
        if not _loopback(host):
            raise InputError(f"--no-key: {host} can be reached from elsewhere; give an API key, or --host 127.0.0.1")
        return None
    try:
        key = file.expanduser().read_text(encoding="utf-8").strip() if file else os.environ.get(KEY, "").strip()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"--api-key-file: {file} cannot be read") from None
    if not key:
        raise InputError(f"give an API key by --api-key-file or ${KEY}, or --no-key on this machine alone")
    if len(key) < _SHORTEST_KEY or not (key.isascii() and key.isprintable()):
        raise InputError(
            f"the API key needs {_SHORTEST_KEY} or more printable characters; make one: openssl rand -hex 32"
        )
    return key


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _verified(folder: Path, key: Path | None, revocations: Path | None, *, allow_unsigned: bool) -> str | None:
    """Check the bundle; the id of the key that signed it."""
    from storage.bundle.check import check
    from storage.bundle.signing import Verifier
    from storage.errors import InputError

    if key is None and not allow_unsigned:
        raise InputError("give the agency's public key by --verify-key, or serve unsigned with --allow-unsigned")
    verifier = Verifier(key.expanduser()) if key is not None else None
    return check(folder, verifier, revocations=revocations, unsigned=allow_unsigned).signed_by
