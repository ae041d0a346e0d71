"""Builds the service: `/code`, `/file`, `/codes`, `/explain`, `/version`, `/metrics`, `/health`,
and two pages.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import APIKeyHeader
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from deployments import VERSION
from mechanisms.thresholds_file import FITTED_ON, FittedOn
from service import files
from service.batching import Batcher, Overloaded
from service.clients import State
from service.guard import Guard
from service.messages import (
    CodeList,
    CodeRequest,
    CodeResponse,
    ExplainRequest,
    ExplainResponse,
    Health,
    Problem,
    Version,
    fault_of,
    place_of,
)
from service.metrics import CONTENT_TYPE, Measured, Metrics
from storage.bundle.folder import STATEMENT
from storage.bundle.stated import accuracy_lines, read_stated
from storage.errors import InputError
from storage.narrative_look import look_at_texts
from storage.tables.options import ReadOptions
from tasks.coding.coder import UNTRAINED, Coder
from tasks.running import installation

_STATIC = Path(__file__).parent / "static"
_PARTS = ("review.css", "table.js", "review.js")
_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
)
_COUNTED = (
    "/code",
    "/file",
    "/explain",
    "/codes",
    "/version",
    "/metrics",
    "/health",
    "/",
    "/review",
)
"""Paths that `/metrics` counts separately."""
_KEY_HEADER = APIKeyHeader(
    name="X-API-Key", auto_error=False, description="The key of this service."
)


@dataclass(frozen=True)
class Settings:
    state: State = field(default_factory=State)
    """Clients, and whether the bundle is withdrawn, when the service starts."""
    renew: Callable[[], State] | None = None
    """Reads the state again while the service runs; never raises."""
    renew_seconds: float = 10.0
    most_bytes: int = files.MOST_BYTES
    hosts: tuple[str, ...] = ("*",)
    """Accepted Host headers, which protects against DNS rebinding."""
    signed_by: str | None = None
    sensitive: tuple[str, ...] = ()
    """Codes that the review page shows first."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Description of each code, which the search on the review page also covers."""
    accuracy: float = 0.9
    """Accuracy that the page preselects, or the nearest accuracy that has a threshold.
    """


class _Running:
    """State that the routes share: the coder, its batches, and the accepted clients."""

    def __init__(self, coder: Coder, settings: Settings) -> None:
        self.coder = coder
        self.settings = settings
        self.batcher = Batcher(coder.scores)
        self.metrics = Metrics(_COUNTED)
        self.state = settings.state
        self.accuracy = accuracy_lines(read_stated(coder.folder))
        self.keyed: Any = Depends(self.admit)

    @property
    def fitted_on(self) -> FittedOn | None:
        """Describes the records that the thresholds were fitted on."""
        return self.coder.thresholds["fitted_on"] if self.coder.thresholds else None

    def admit(self, request: Request, key: str | None = Security(_KEY_HEADER)) -> str:
        """Returns the client's name, or its address if no keys are required."""
        if self.state.clients is None:
            return request.client.host if request.client else "unknown"
        name = None if key is None else self.state.clients.name_of(key)
        if name is not None:
            return f"client {name}"
        fault = "wrong" if key else "missing"
        raise HTTPException(
            401,
            f"the API key (header X-API-Key) is {fault}",
            headers={"WWW-Authenticate": "ApiKey"},
        )

    def require_not_revoked(self) -> None:
        if self.state.withdrawn is not None:
            raise HTTPException(503, self.state.withdrawn)

    async def renew(self) -> None:
        while self.settings.renew is not None:
            await asyncio.sleep(self.settings.renew_seconds)
            self.state = await asyncio.to_thread(self.settings.renew)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        await self.batcher.start()
        renewing = asyncio.create_task(self.renew())
        yield
        renewing.cancel()
        await self.batcher.stop()


def create_app(coder: Coder, settings: Settings) -> FastAPI:
    running = _Running(coder, settings)
    app = FastAPI(
        title="Autocoder",
        version=VERSION,
        description=(
            "Codes for narratives from one released model. Narratives are neither stored "
            "nor logged."
        ),
        docs_url=None,  # FastAPI's page would load scripts from another host
        redoc_url=None,
        lifespan=running.lifespan,
    )
    page, review = _page(running), _review_page(running)
    app.add_middleware(
        TrustedHostMiddleware, allowed_hosts=list(settings.hosts), www_redirect=False
    )
    app.add_middleware(
        Guard,
        most_bytes=settings.most_bytes,
        headers={"content-security-policy": _content_policy(page + review)},
        admit=lambda request: running.admit(request, request.headers.get(_KEY_HEADER.model.name)),
    )
    app.add_middleware(Measured, metrics=running.metrics)
    _add_refusals(app)
    _add_coding(app, running)
    _add_files(app, running)
    _add_code_list(app, running)
    _add_explanations(app, running)
    _add_facts(app, running)
    _add_pages(app, coder, page, review)
    return app


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


def _page(running: _Running) -> str:
    coder, settings = running.coder, running.settings
    targets = _targets(coder)
    accuracies = [name for name, _ in targets]
    has_statement = (coder.folder / STATEMENT).is_file()
    described = coder.kind == UNTRAINED or has_statement
    return _PAGES.get_template("page.html").render(
        coder=coder,
        keyed=settings.state.clients is not None,
        targets=targets,
        preset=min(accuracies, key=lambda name: abs(name - settings.accuracy), default=None),
        fitted_on=running.fitted_on,
        fitted_on_words=FITTED_ON,
        accuracy=running.accuracy,
        origin=coder.description if described else coder.release,
        tables=Markup((_STATIC / "table.js").read_text(encoding="utf-8")),
        most_rows=files.MOST_ROWS,
        most_bytes=files.MOST_BYTES,
    )


def _review_page(running: _Running) -> str:
    parts = {name: Markup((_STATIC / name).read_text(encoding="utf-8")) for name in _PARTS}
    return _PAGES.get_template("static/review.html").render(
        coder=running.coder,
        keyed=running.settings.state.clients is not None,
        parts=parts,
        most_rows=files.MOST_ROWS,
    )


def _add_coding(app: FastAPI, running: _Running) -> None:
    coder, batcher, metrics = running.coder, running.batcher, running.metrics
    large = files.LargeRequests()

    @app.post("/code", responses=_problems(400, 401, 413, 422, 500, 503))
    async def code(body: CodeRequest, _: str = running.keyed) -> CodeResponse:
        """Code one narrative or several."""
        running.require_not_revoked()
        how: Any = {"top_k": body.top_k, "threshold": body.threshold, "each": files.TOGETHER}
        with large.admitted(len(body.texts)):
            pieces = files.in_pieces(
                batcher, coder, body.texts, running.require_not_revoked, refuses=True, **how
            )
            codings = [coding async for piece in pieces for coding in piece]
        metrics.coded(codings)
        results = [{"needs_review": None, "group": None} | coding.as_dict() for coding in codings]
        look = look_at_texts(body.texts)
        notes = coder.reads.notes(look)
        metrics.cut(coder.reads.cut(look))
        return CodeResponse.model_validate(coder.origin | {"results": results, "warnings": notes})


def _add_files(app: FastAPI, running: _Running) -> None:
    coder, batcher, metrics = running.coder, running.batcher, running.metrics
    coding: set[str] = set()
    answering: set[str] = set()

    # This is for the page. Programs use `autocoder code`, which takes any size and resumes after a
    # crash.
    @app.post("/file", include_in_schema=False)
    async def file(
        request: Request,
        column: Annotated[str, Query(max_length=1000)],
        top_k: Annotated[int, Query(ge=1, le=20)] = 1,
        threshold: Annotated[float | None, Query(ge=0, le=1)] = None,
        read: Annotated[str, Query(max_length=4000)] = "{}",
        name: str = running.keyed,
    ) -> files.Answer:
        """Code a CSV. Lines are sent as soon as they are coded, and `X-Rows` gives their number.

        `read` takes the settings of `--read` as JSON: {"separator": "|"}.
        """
        running.require_not_revoked()
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise HTTPException(
                422, "the body is a form. Send the file itself: curl --data-binary @FILE"
            )
        try:
            settings_of_reading = ReadOptions.model_validate_json(read)
        except ValidationError as error:
            faults = "; ".join(f"{place_of(fault)}: {fault['msg']}" for fault in error.errors())
            raise HTTPException(422, f"read: {faults}") from None
        body = await request.body()
        if len(coding) >= files.AT_ONCE or name in answering:
            raise HTTPException(
                503, "other files are being coded. Try again later.", headers={"Retry-After": "10"}
            )
        coding.add(name)
        answering.add(name)

        def done() -> None:
            coding.discard(name)
            answering.discard(name)

        def end(task: asyncio.Future[Any]) -> None:
            done()
            if not task.cancelled():
                # taken, or the loop would log a message that names a column of the file
                task.exception()

        how: Any = {
            "column": column,
            "top_k": top_k,
            "threshold": threshold,
            "read": settings_of_reading,
        }
        reading = asyncio.ensure_future(asyncio.to_thread(files.read, body, coder, **how))
        try:
            upload = await asyncio.shield(reading)
        except asyncio.CancelledError:
            # a thread cannot be stopped: it keeps its slot until it ends, even if no client waits
            # for it
            reading.add_done_callback(end)
            raise
        except InputError as error:
            done()
            raise HTTPException(422, str(error)) from None
        except BaseException:
            done()
            raise
        metrics.cut(upload.cut)
        coded = files.lines(upload, coder, batcher, running.require_not_revoked, metrics)
        return files.Answer(
            files.ahead(coded, lambda: coding.discard(name)),
            rows=len(upload.texts),
            done=done,
            notes=upload.notes,
        )


def _add_code_list(app: FastAPI, running: _Running) -> None:
    coder, settings = running.coder, running.settings
    above = coder.groups.above if coder.groups else {}
    listed = [
        {
            "code": code,
            "title": coder.titles.get(code, ""),
            "description": settings.descriptions.get(code, ""),
            "above": list(above.get(code, ())),
        }
        for code in coder.model.codes
    ]
    codes_answer = CodeList.model_validate(
        coder.origin | {"codes": listed, "sensitive": list(settings.sensitive)}
    )

    @app.get("/codes", responses=_problems(401, 413, 500), dependencies=[running.keyed])
    async def codes() -> CodeList:
        """Returns the bundle's public code list."""
        return codes_answer


def _add_explanations(app: FastAPI, running: _Running) -> None:
    coder, batcher = running.coder, running.batcher

    @app.post("/explain", responses=_problems(400, 401, 413, 422, 500, 501, 503))
    async def explain_codes(body: ExplainRequest, _: str = running.keyed) -> ExplainResponse:
        """Show which words of one narrative spoke for some codes."""
        running.require_not_revoked()
        if absent := [name for name in ("torch", "transformers") if find_spec(name) is None]:
            raise HTTPException(
                501, f"explanations are not available here. {installation.refusal(absent)}"
            )
        from tasks.coding.explain import explain

        try:
            answer = await batcher.single(lambda: explain(coder, body.narrative, body.codes))
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        return ExplainResponse.model_validate(coder.origin | asdict(answer))


def _add_facts(app: FastAPI, running: _Running) -> None:
    coder, settings, metrics = running.coder, running.settings, running.metrics

    @app.get("/version", responses=_problems(401, 413, 500), dependencies=[running.keyed])
    async def version() -> Version:
        """Returns the model, the classification and the bundle."""
        about = {
            "software": app.version,
            "codes": len(coder.model.codes),
            "signed_by": settings.signed_by,
            "calibrated_on": FITTED_ON[running.fitted_on] if running.fitted_on else None,
            "accuracy": running.accuracy,
            "withdrawn": running.state.withdrawn,
        }
        return Version.model_validate(coder.origin | about)

    @app.get("/metrics", responses=_problems(401, 413, 500), dependencies=[running.keyed])
    async def counts() -> PlainTextResponse:
        """Returns counts since the start in Prometheus format: requests, latency, answers above the
        threshold, and narratives that were truncated.
        """
        return PlainTextResponse(metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/health", responses=_problems(413, 500, 503))
    async def health() -> Health:
        """Checks that the service answers and can code."""
        running.require_not_revoked()
        return Health(status="ok")


def _add_pages(app: FastAPI, coder: Coder, page: str, review: str) -> None:
    @app.get("/", include_in_schema=False)
    async def try_it() -> HTMLResponse:
        return HTMLResponse(page)

    for name in ("PRIVACY.md", "README.md"):
        document = coder.folder / name
        if document.is_file():
            shown = PlainTextResponse(document.read_text(encoding="utf-8"))
            app.router.routes.append(Route(f"/{name}", shown, include_in_schema=False))

    @app.get("/review", include_in_schema=False)
    async def review_it() -> HTMLResponse:
        return HTMLResponse(review)


def _targets(coder: Coder) -> list[tuple[float, float]]:
    fitted = (coder.thresholds or {}).get("thresholds", ())
    return [
        (entry["target_accuracy"], entry["threshold"])
        for entry in fitted
        if entry["threshold"] is not None
    ]


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": fault_of(error.errors())}, status_code=422)

    @app.exception_handler(Overloaded)
    async def postpone(_: Request, __: Overloaded) -> JSONResponse:
        answer = {"detail": "too many narratives are waiting. Try again later."}
        return JSONResponse(answer, status_code=503, headers={"Retry-After": "1"})


def _content_policy(page: str) -> str:
    def hashes(tag: str) -> str:
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        return " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
            for s in texts
        )

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; "
        "connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
