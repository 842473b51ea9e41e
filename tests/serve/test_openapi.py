"""The OpenAPI document is true: what it allows never makes the server fail, and every answer is one that it tells of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from tests.engine.engines import Rig
from tests.serve.asking import ask, serving
from tests.serve.engine_double import Engine
from tests.talking import tokenizer

from forerun.serve.app import build

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate], database=None, derandomize=True
)
NUM_LONG = 20_000
NUM_ROUTES = 12
NUM_CONTEXT = 512  # a high temperature may never draw the token that ends an answer


@pytest.fixture(scope="module")
def document() -> Iterator[schemathesis.BaseSchema]:
    """The document of a server around a real engine, whose model says two letters and stops."""
    rig, stop = Rig(None, context_tokens=NUM_CONTEXT), min(tokenizer().stop_ids)
    rig.family.script = lambda position, token, total: stop if position % 3 == 0 else 33
    rig.gate.open()
    with serving(rig.engine) as port:
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    rig.engine.worker.close(5.0)


def try_out(document: schemathesis.BaseSchema, num_requests: int) -> int:
    """Send each route its share of requests that the document allows, and hold the answers against it. Returns how many were sent."""
    routes, sent = [found.ok() for found in document.get_all_operations()], 0
    for route in routes:

        @settings(QUIET, max_examples=num_requests // len(routes))
        @given(route.as_strategy())
        def ask_and_check(case: Case) -> None:
            nonlocal sent
            case.call_and_validate(checks=CHECKS)
            sent += 1

        ask_and_check()
    return sent


def test_nothing_that_is_allowed_fails(document: schemathesis.BaseSchema) -> None:
    assert try_out(document, 150) > 75


@pytest.mark.long
def test_nothing_that_is_allowed_fails_at_length(document: schemathesis.BaseSchema) -> None:
    assert try_out(document, 2 * NUM_LONG) > NUM_LONG  # routes without parameters have but one request


def test_every_route_is_told_of() -> None:
    told = ask(Engine(), "GET", "/openapi.json").json()["paths"]
    app = build(Engine(), keys={}, host="127.0.0.1")
    found = {(route.path.replace(":path", ""), method.lower()) for route in app.routes for method in getattr(route, "methods", ())}
    assert found == {(path, method) for path, methods in told.items() for method in methods}
    assert len(told) == NUM_ROUTES
