"""The short way of the question that is asked most: to whoever answers it, past all that routes the others."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Answering = Callable[[Request], Awaitable[Response]]


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
