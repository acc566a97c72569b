"""The API: FastAPI under /api/v1, with its OpenAPI document beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from fastapi import FastAPI
from starlette.routing import Mount

from holdfast import __version__
from holdfast.api import (
    audit,
    certificates,
    channels,
    cluster,
    documents,
    exports,
    forecast,
    installation,
    issuers,
    journal,
    notices,
    problems,
    stats,
    work,
)
from holdfast.api.gate import Gate
from holdfast.api.origin import networks
from holdfast.api.throttle import Throttle
from holdfast.operations.front import Front
from holdfast.telemetry import Log

Opened = Callable[[], Front | None]  # None until the store, the schema and the keys are there


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """With the shape of problems, which every route may answer with and none returns."""
        if self.openapi_schema is None:
            schemas = super().openapi().setdefault("components", {}).setdefault("schemas", {})
            if "Problem" in schemas:
                raise AssertionError("a route has a model named Problem, which is the name of ours")
            found = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= {**found.pop("$defs", {}), "Problem": found}
        return super().openapi()


def site(
    front: Opened,
    log: Log,
    *,
    new_id: Callable[[], str],
    now: Callable[[], datetime],
    local: bool = False,
    proxies: Sequence[str] = (),
) -> FastAPI:
    """`local`: on a socket that only our user can open, whoever asks is believed to be who they say.

    `proxies` are networks whose word about the client's address is taken.
    """
    app = _Api(
        title="Holdfast",
        version=__version__,
        summary="Certificates that are asked for once and then kept.",
        openapi_url="/openapi.json",
        docs_url=None,  # a page with scripts from elsewhere
        redoc_url=None,
        responses=problems.RESPONSES,
        servers=[{"url": "/api/v1"}],
        root_path_in_servers=False,
        redirect_slashes=False,  # to an address made of what the client calls us
        separate_input_output_schemas=False,
    )
    app.state.front, app.state.local, app.state.throttle = front, local, Throttle()
    app.state.proxies, app.state.now, app.state.streams = networks(proxies), now, Counter[str]()
    problems.install(app, log)
    for module in (
        certificates,
        exports,
        documents,
        work,
        issuers,
        journal,
        notices,
        channels,
        audit,
        stats,
        forecast,
        cluster,
        installation,
    ):
        app.include_router(module.router)
    app.add_middleware(Gate, new_id=new_id)
    return app


def mount(front: Opened, log: Log, **manner: Any) -> Mount:
    """The same under its address; `manner` as for `site`."""
    mounted = Mount("/api/v1", site(front, log, **manner))
    mounted.path_regex = re.compile(r"^/api/v1/(?P<path>.*)$", re.DOTALL)  # a path with a line break is ours to refuse
    return mounted
