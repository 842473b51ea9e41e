"""The OpenAPI document is correct: no request that it allows makes the server fail, and it describes every response."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from tests.engine.engines import Rig
from tests.serve.asking import ask, serving
from tests.serve.engine_double import Engine
from tests.talking import tokenizer
from tests.waiting import LIMIT_S

from forerun.serve.app import build
from forerun.serve.request_guard import ARCHIVE

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate], database=None, derandomize=True
)
NUM_LONG = 20_000
NUM_ROUTES = 21
NUM_CONTEXT = 160  # a high temperature may never draw the token that ends an answer, and there may be 128 of them
RAM_BYTES = 64 << 20  # less than 20,000 conversations take
Write = Callable[[str, dict[str, Any]], None]
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
Sent = Counter[tuple[str, int]]
schemathesis.openapi.media_type(ARCHIVE, st.binary(max_size=2000))
schemathesis.serializer.alias(ARCHIVE, "application/octet-stream")


@pytest.fixture(scope="module")
def document() -> Iterator[schemathesis.BaseSchema]:
    """The document of a server around a real engine, whose model writes two letters and stops."""
    rig, stop = Rig(None, context_tokens=NUM_CONTEXT, ram_limit_bytes=RAM_BYTES), min(tokenizer().stop_ids)
    rig.family.script = lambda position, token, total: stop if position % 3 == 0 else 33
    rig.gate.open()
    with serving(rig.engine) as port:
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    rig.engine.worker.close(LIMIT_S)


def try_out(document: schemathesis.BaseSchema, num_requests: int) -> Sent:
    """Send requests that the document allows, and to routes with a body as many that it forbids, and check the responses against it.

    Returns how many were sent, by route and status.
    """
    routes = [found.ok() for found in document.get_all_operations()]
    variants = [(route, variant) for route in routes for variant in (POSITIVE, NEGATIVE) if variant == POSITIVE or route.method == "post"]
    num_fixed = sum(route.method in ("get", "delete") and not route.path_parameters for route in routes)  # one request is all there is
    sent: Sent = Counter()
    for route, variant in variants:

        @settings(QUIET, max_examples=ceil(num_requests / (len(variants) - num_fixed)))
        @given(route.as_strategy(variant))
        def ask_and_check(case: Case) -> None:
            response = case.call(timeout=LIMIT_S)
            sent[f"{case.method} {case.operation.path}", response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        ask_and_check()
    return sent


def test_no_request_makes_the_server_fail(document: schemathesis.BaseSchema) -> None:
    sent = try_out(document, 150)
    assert sent.total() > 75
    assert {status for _, status in sent} >= {200, 400}


@pytest.mark.long
def test_no_request_makes_the_server_fail_at_length(document: schemathesis.BaseSchema, write_result: Write) -> None:
    start_s = time.monotonic()
    sent = try_out(document, NUM_LONG)
    assert sent.total() >= NUM_LONG
    rows = [{"route": route, "status": status, "requests": num} for (route, status), num in sorted(sent.items())]
    write_result("fuzz", {"requests": sent.total(), "seconds": round(time.monotonic() - start_s), "by_route_and_status": rows})


def test_every_route_is_documented() -> None:
    documented = ask(Engine(), "GET", "/openapi.json").json()["paths"]
    app = build(Engine(), keys={}, host="127.0.0.1")
    found = {(route.path.replace(":path", ""), method.lower()) for route in app.routes for method in getattr(route, "methods", ())}
    found = {(path, method) for path, method in found if method != "head"}  # goes without saying
    assert found == {(path, method) for path, methods in documented.items() for method in methods}
    assert len(documented) == NUM_ROUTES
