"""The service: `POST /code`, `POST /file`, `GET /version`, `GET /health`, and a page to try it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import APIKeyHeader
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from service import files
from service.batching import Batcher, Overloaded
from service.clients import State
from service.guard import Bodies, Guard
from service.messages import CodeRequest, CodeResponse, Health, Problem, Version
from storage.errors import InputError
from tasks.coding.coder import Coder, Coding
from tasks.coding.joint import Case, JointCoder

_PAGES = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
_KEY_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The key of this service.")


@dataclass(frozen=True)
class Settings:
    """Limits of the service."""

    state: State = field(default_factory=State)
    """Who may come in, and whether anything is coded."""
    renew: Callable[[], State] | None = None
    """Looks again, while the service runs; raises nothing."""
    renew_seconds: float = 10.0
    narratives_per_minute: int = 6000
    """Of one client or, without keys, of one address; failed keys count as one each."""
    most_bytes: int = 1 << 20
    signed_by: str | None = None


class _Doorkeeper:
    """Who may come in, and how often, as it is at the moment."""

    def __init__(self, settings: Settings) -> None:
        self.state = settings.state
        self._rate = RateLimitItemPerMinute(settings.narratives_per_minute)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def admit(self, request: Request, key: str | None) -> str:
        """The name under which a client's narratives are counted."""
        address = request.client.host if request.client else "unknown"
        clients = self.state.clients
        if clients is None:
            return address
        if key is not None and (name := clients.name_of(key)) is not None:
            return f"client {name}"
        self.count(f"refused {address}", 1)
        raise HTTPException(401, "the header X-API-Key is missing or wrong", headers={"WWW-Authenticate": "ApiKey"})

    def require_standing(self) -> None:
        """Refuse to code with a bundle that was withdrawn."""
        if self.state.withdrawn is not None:
            raise HTTPException(503, self.state.withdrawn)

    def count(self, name: str, narratives: int) -> None:
        """Take so many narratives off what a client may send."""
        if not self._limiter.hit(self._rate, name, cost=narratives):
            reset = self._limiter.get_window_stats(self._rate, name).reset_time
            wait = max(1, math.ceil(reset - time.time()))
            raise HTTPException(
                429, f"over {self._rate.amount:,} narratives a minute; wait", headers={"Retry-After": str(wait)}
            )


def create_app(coder: Coder | JointCoder, settings: Settings) -> FastAPI:
    """The application for one coder."""
    batcher, door = Batcher(coder.scores), _Doorkeeper(settings)

    async def renewed() -> None:
        while settings.renew is not None:
            await asyncio.sleep(settings.renew_seconds)
            door.state = await asyncio.to_thread(settings.renew)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        watching = asyncio.create_task(renewed())
        yield
        watching.cancel()
        await batcher.stop()

    app = FastAPI(
        title="Autocoder",
        version=version_of("swag-ppm-autocoder"),
        description="Codes for narratives from one released model. Narratives are neither stored nor logged.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    page = _PAGES.get_template("page.html").render(
        coder=coder, most_rows=min(files.MOST_ROWS, settings.narratives_per_minute), most_bytes=files.MOST_BYTES
    )
    app.add_middleware(
        Guard,
        most_bytes=settings.most_bytes,
        headers={"content-security-policy": _content_policy(page)},
        admit=lambda request: door.admit(request, request.headers.get(_KEY_HEADER.model.name)),
        at={"/file": Bodies(files.MOST_BYTES, most=4, seconds=files.SECONDS)},
    )
    _silence(app)

    def client(request: Request, key: str | None = Security(_KEY_HEADER)) -> str:
        return door.admit(request, key)

    def keyed() -> Any:
        return Depends(client)

    def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
        return {status: {"model": Problem} for status in statuses}

    @app.post("/code", responses=problems(400, 401, 413, 422, 429, 500, 503))
    async def code(asked: CodeRequest, name: str = keyed()) -> CodeResponse:
        """Code one narrative or several."""
        door.require_standing()
        texts = asked.texts
        door.count(name, len(texts))
        try:
            scores = await batcher.scores([text for text in texts if text.strip()])
        except Overloaded:
            raise HTTPException(503, "too many narratives are waiting", headers={"Retry-After": "1"}) from None
        blank = coder.blank(asked.threshold)
        coded = iter(coder.from_scores(scores, top_k=asked.top_k, threshold=asked.threshold))
        codings = [next(coded) if text.strip() else blank for text in texts]
        return CodeResponse.model_validate(coder.origin | {"results": [_result(coding) for coding in codings]})

    most_rows, working = min(files.MOST_ROWS, settings.narratives_per_minute), 0

    # The page's own: a program has `autocoder code`, which takes any size and goes on after a death.
    @app.post("/file", include_in_schema=False)
    async def file(
        request: Request,
        column: Annotated[str, Query(max_length=1000)],
        top_k: Annotated[int, Query(ge=1, le=20)] = 1,
        threshold: Annotated[float | None, Query(ge=0, le=1)] = None,
        name: str = keyed(),
    ) -> files.Answer:
        """Code a CSV; its lines come as they are coded, and `X-Rows` says how many they will be."""
        nonlocal working
        door.require_standing()
        if working >= files.AT_ONCE:
            raise HTTPException(503, "other files are being coded; wait", headers={"Retry-After": "10"})
        working += 1

        def done() -> None:
            nonlocal working
            working -= 1

        try:
            how: Any = {"column": column, "top_k": top_k, "threshold": threshold, "most_rows": most_rows}
            upload = await asyncio.to_thread(files.read, await request.body(), coder, **how)
            door.count(name, len(upload.texts))
        except InputError as error:
            done()
            raise HTTPException(422, str(error)) from None
        except BaseException:
            done()
            raise
        coded = files.lines(upload, coder, batcher, door.require_standing)
        return files.Answer(coded, rows=len(upload.texts), done=done)

    @app.get("/version", responses=problems(401, 413, 429, 500), dependencies=[keyed()])
    async def version() -> Version:
        """The model, the classification and the bundle."""
        return Version(
            **coder.origin,
            software=app.version,
            codes=len(coder.model.codes),
            signed_by=settings.signed_by,
            calibrated_on=_calibrated_on(coder),
            withdrawn=door.state.withdrawn,
        )

    @app.get("/health", responses=problems(413, 500, 503))
    async def health() -> Health:
        """Whether the service answers, and codes."""
        door.require_standing()
        return Health(status="ok")

    @app.get("/", include_in_schema=False)
    async def try_it() -> HTMLResponse:
        return HTMLResponse(page)

    return app


def _result(coding: Coding | Case) -> dict[str, Any]:
    if isinstance(coding, Coding):
        return {"needs_review": None, "group": None} | coding.as_dict()
    fields = {name: _result(own) for name, own in coding.codings.items()}
    return {"needs_review": None, "conflicts": None} | coding.as_dict() | {"fields": fields}


def _calibrated_on(coder: Coder | JointCoder) -> str | None:
    """What the temperatures were fitted on, field by field where there are several."""
    known = {name: one.thresholds["fitted_on"] for name, one in coder.fields.items() if one.thresholds}
    return "; ".join(f"{name}: {said}" if name else said for name, said in known.items()) or None


def _silence(app: FastAPI) -> None:
    """A refusal says which field is wrong and why; FastAPI's own would send the narrative back."""

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"detail": f"{place}: {first['msg']}"}, status_code=422)


def _content_policy(page: str) -> str:
    """Only the page's own script and style may run, and only this service be asked."""

    def hashes(tag: str) -> str:
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in texts)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
