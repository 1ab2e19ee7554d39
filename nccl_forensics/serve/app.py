"""The web application: routes, what problems become, and the guard in front of it all."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from nccl_forensics.serve.access import Guard
from nccl_forensics.serve.arrivals import ClientGone, drain
from nccl_forensics.serve.pages import PAGES, problem_page
from nccl_forensics.serve.problems import Problem, no_room
from nccl_forensics.serve.routes import ROUTES
from nccl_forensics.serve.service import Service

LOG = logging.getLogger("nccl_forensics.serve")


def make_app(service: Service) -> ASGIApp:
    """The application for a service; its lifespan starts and stops the analyses."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = Starlette(
        routes=[*ROUTES, *PAGES],
        lifespan=lifespan,
        exception_handlers={
            Problem: _on_problem,
            HTTPException: _on_http,
            ClientGone: _on_gone,
            sqlite3.OperationalError: _on_store,
            Exception: _on_defect,
        },
    )
    app.state.service = service
    return Guard(app, service.sessions, service.settings.hosts)


async def _answer(request: Request, problem: Problem) -> Response:
    if problem.close and problem.status != 408:
        await drain(request.headers, request.receive)
    if request.url.path.startswith("/api/") or request.url.path == "/healthz":
        answer: Response = JSONResponse(problem.body(), status_code=problem.status)
    else:
        answer = problem_page(request, problem)
    if problem.close:
        answer.headers["connection"] = "close"
    return answer


async def _on_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return await _answer(request, problem)


async def _on_http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    codes = {404: "not-found", 405: "wrong-method"}
    answer = await _answer(request, Problem(problem.status_code, codes.get(problem.status_code, "http"), str(problem.detail)))
    for name, value in (problem.headers or {}).items():
        answer.headers[name] = value
    return answer


def _on_gone(_request: Request, _problem: Exception) -> Response:
    return Response(status_code=400, headers={"connection": "close"})


async def _on_store(request: Request, problem: Exception) -> Response:
    if "full" in str(problem) or "disk I/O" in str(problem):
        return await _answer(request, no_room())
    LOG.error("the store: %s", problem)
    return await _answer(request, Problem(503, "busy", "the store cannot be written at the moment; try again later", close=True))


async def _on_defect(request: Request, _problem: Exception) -> Response:
    return await _answer(request, Problem(500, "defect", "a defect of the service; its log says more", close=True))
