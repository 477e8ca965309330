"""The HTTP interface: predict, model, examples, manifest, plan, health, metrics, and the page that shows them all."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from splitmix import __version__
from splitmix.core.errors import UserError, printable, shown
from splitmix.core.inputs.pictures import TooManyPixelsError, UnreadableError
from splitmix.core.width import Width
from splitmix.runtime.about.examples import Examples, read_examples
from splitmix.runtime.manifest import Manifest
from splitmix.runtime.model import Model
from splitmix.serve.describe import page_of
from splitmix.serve.limits import Guard, Hosts, ServerLimits, household
from splitmix.serve.metrics import Counting
from splitmix.serve.questions import (
    Health,
    ModelFacts,
    NumberQuestion,
    PictureAnswer,
    PixelQuestion,
    PlanAnswer,
    PlanQuestion,
    Refusal,
    body_of,
    checked,
    read_json,
    read_question,
    sentences,
)
from splitmix.serve.service import Service
from splitmix.serve.turns import BusyError

if TYPE_CHECKING:
    from splitmix.core.objective import Attack

LIMITS = ServerLimits()
Answering = Callable[[Request], Awaitable[Response]]
PREDICT = "/api/predict"
STATIC = Path(__file__).parent / "static"
LONGEST = 400  # characters of a sentence: nobody gets back all that was sent
REASONS = {
    400: "what was sent cannot be read",
    403: "a page of another site sent it",
    408: "it took too long to arrive",
    413: "too many bytes or pixels",
    415: "neither JSON nor a form",
    421: "a host that is not served here",
    422: "a setting that cannot be",
    429: "too many requests",
    503: "busy",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": reason} for status, reason in REASONS.items()
}


def make_app(
    model: Model,
    *,
    name: str = "",
    attack: "Attack | None" = None,
    limits: ServerLimits = LIMITS,
    hosts: Collection[str] = (),
) -> FastAPI:
    """The interface of one model; with an attack, visitors may turn it on the pictures that they send.

    It answers to the names that this machine has for itself, such as localhost; `hosts` are others.
    """
    service, examples = Service(model, attack if can_attack(model) else None, limits), read_examples(model.bundle)
    app = FastAPI(
        title="splitmix",
        version=__version__,
        description="A trained model whose width and robustness are settings of every request.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(service),
    )
    app.add_middleware(Straight, path=PREDICT, answer=_answering(service, limits), handlers=app.exception_handlers)
    app.add_middleware(Guard, limits=limits, hosts=Hosts(hosts))
    app.add_middleware(Counting, metrics=service.metrics)
    _explain_errors(app)
    _add_questions(app, service, limits)
    _add_facts(app, service, name, examples)
    _add_pages(app)
    return app


def _answering(service: Service, limits: ServerLimits) -> Answering:
    async def predict(request: Request) -> Response:
        """Classify a picture: pixels in JSON, or a file called image in a form, with the settings beside it."""
        asked = perf_counter()
        ask, picture = await read_question(request, service.model, limits.pixels)
        who = household(request.client.host if request.client else "")
        answer = await service.answer(ask, picture, asked=asked, who=who)
        return Response(answer.model_dump_json(), media_type="application/json")  # it has been checked once

    return predict


class Straight:
    """Answers what is posted to one path itself; routing and its layers would take longer than a small model.

    What goes wrong is explained as elsewhere; what nobody explains is left to whoever stands before.
    """

    def __init__(self, app: ASGIApp, path: str, answer: Answering, handlers: Mapping[Any, Any]) -> None:
        self.app, self.path, self.answer, self.handlers = app, path, answer, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        scope["route"] = self  # it is counted under its path
        request = Request(scope, receive, send)
        try:
            response = await self.answer(request)
        except Exception as error:
            kinds = type(error).__mro__[: type(error).__mro__.index(Exception)]
            handler = next((self.handlers[kind] for kind in kinds if kind in self.handlers), None)
            if handler is None:
                raise
            response = await handler(request, error)
        await response(scope, receive, send)


def _add_questions(app: FastAPI, service: Service, limits: ServerLimits) -> None:
    pictures = service.model.manifest.sample == "image"
    asked_in = body_of(PixelQuestion if pictures else NumberQuestion, form=pictures)
    described = app.post(PREDICT, response_model=PictureAnswer, responses=ERRORS, openapi_extra=asked_in)
    described(_answering(service, limits))

    @app.get("/api/plan", responses=ERRORS)
    async def plan(limits: Annotated[PlanQuestion, Query()]) -> PlanAnswer:
        """The best dial within limits on time, memory, work and accuracy."""
        return await service.plan(limits)

    @app.post("/api/plan", responses=ERRORS, openapi_extra=body_of(PlanQuestion))
    async def plan_by_json(request: Request) -> PlanAnswer:
        """The same, with the limits in JSON."""
        return await service.plan(checked(PlanQuestion, read_json(await request.body())))


def _add_facts(app: FastAPI, service: Service, name: str, examples: Examples) -> None:
    model, began = service.model, monotonic()

    @app.get("/api/model")
    async def about() -> ModelFacts:
        """What is served now: classes, widths, what each costs, and the measured table."""
        return facts_of(model, name, service.attack)

    @app.get("/api/examples")
    async def some() -> Examples:
        """Pictures that came with the bundle, by domain."""
        return examples

    @app.get("/api/manifest", response_model_exclude=model.manifest.unsaid)
    async def manifest() -> Manifest:
        """The manifest of the bundle, as it is on disk."""
        return model.manifest

    @app.get("/health")
    async def health() -> Health:
        """Whether it serves, which widths, and for how long."""
        return Health(status="ok", widths=list(map(str, model.widths)), seconds=round(monotonic() - began, 1))

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(service.metrics.text(), media_type=service.metrics.content_type)


def _add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(page_of(app.openapi(), str(request.base_url)))

    app.mount("/static", StaticFiles(directory=STATIC))


def can_attack(model: Model) -> bool:
    """Whether gradients reach the pixels: they do in nets of ours, on PyTorch."""
    try:
        model.manifest.build()
    except UserError:
        return False
    return model.manifest.sample == "image"


def facts_of(model: Model, name: str, attack: "Attack | None") -> ModelFacts:
    """What is served now."""
    said, widest = model.manifest, model.widths[-1]
    return ModelFacts(
        net=said.net.name,
        task=said.trained.get("task"),
        storage=said.storage,
        classes=list(model.classes),
        sample=said.sample,
        image=list(model.image),
        columns=said.scaling.columns if said.scaling else [],
        atom=str(model.atom),
        bases=len(said.bases),
        widths=list(map(str, model.widths)),
        dual=model.dual,
        costs=said.costs[: len(model.widths)],
        table=said.table.model_copy(update={"rows": [row for row in said.table.rows if Width(row.width) <= widest]}),
        version=__version__,
        name=name,
        attack=attack.name if attack else None,
    )


def _lifespan(service: Service) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.warm_up()
        yield
        service.close()

    return lifespan


def _explain_errors(app: FastAPI) -> None:
    """Whatever goes wrong is a status and one sentence."""

    def say(status: int, why: str, **headers: str) -> JSONResponse:
        return JSONResponse({"error": " ".join(printable(why[:LONGEST]).split())}, status, headers or None)

    async def mistaken(_: Request, error: Exception) -> JSONResponse:
        status = 400 if isinstance(error, UnreadableError) else 413 if isinstance(error, TooManyPixelsError) else 422
        return say(status, str(error))

    async def refused(request: Request, error: Exception) -> JSONResponse:
        status, why = getattr(error, "status_code", 400), str(getattr(error, "detail", error))
        if status in (404, 405):
            why = f"there is no {shown(request.method)} {shown(request.url.path)}; see /docs"
        return say(status, why)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        mistakes = error.errors() if isinstance(error, RequestValidationError) else ()
        return say(422, sentences(mistakes))

    async def busy(_: Request, error: Exception) -> JSONResponse:
        return say(getattr(error, "status", 503), str(error), **{"retry-after": "1"})

    async def broken(_: Request, error: Exception) -> JSONResponse:
        return say(500, "something went wrong here; the server's own output says what")

    app.add_exception_handler(UserError, mistaken)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(BusyError, busy)
    app.add_exception_handler(Exception, broken)
