"""`autocoder serve`: a released bundle behind HTTP."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say

KEY = "AUTOCODER_API_KEY"
_SHORTEST_KEY = 16


@dataclass(frozen=True)
class TlsOptions:
    """HTTPS, where both are given."""

    tls_certificate: Annotated[Path | None, typer.Option(help="Serve HTTPS: PEM file.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None


@dataclass(frozen=True)
class TrustOptions:
    """Whose bundle is served."""

    verify_key: Annotated[Path | None, typer.Option(help="Public key (PEM) that must have signed the bundle.")] = None
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
    api_key_file: Annotated[Path | None, typer.Option(help="File with the API key.", show_default=f"${KEY}")] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Ask for no API key; only on a loopback address.")] = False,
    rate: Annotated[int, typer.Option(min=1, help="Narratives a minute of one client.")] = 6000,
    thresholds: options.Thresholds = None,
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

    _check_tls(tls)
    key = _key(api_key_file, no_key=no_key, host=host)
    with private_errors("serve"):
        try:
            import uvicorn

            from service.app import Settings, create_app
            from service.connections import Connection
        except ImportError:
            raise InputError("serve needs uvicorn and limits; install the extra: pip install '.[serve]'") from None
        from tasks.coding.coder import Coder

        with released.opened() as folder:
            signed_by = _verified(folder, trust)
            coder = Coder.open(folder, thresholds=thresholds)
        coder.scores(["warm"])
        config = uvicorn.Config(
            create_app(coder, Settings(key=key, narratives_per_minute=rate, signed_by=signed_by)),
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


def _verified(folder: Path, trust: TrustOptions) -> str | None:
    """Check the bundle; the id of the key that signed it."""
    from storage.bundle.check import check
    from storage.bundle.signing import Verifier
    from storage.errors import InputError

    if trust.verify_key is None and not trust.allow_unsigned:
        raise InputError("give the agency's public key by --verify-key, or serve unsigned with --allow-unsigned")
    verifier = Verifier(trust.verify_key.expanduser()) if trust.verify_key is not None else None
    return check(folder, verifier, revocations=trust.revocations, unsigned=trust.allow_unsigned).signed_by
