import json

import pytest

from forerun import errors
from forerun.serve.problems import problem_of


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BadRequestError("m", param="p"), 400, "bad_request"),
        (errors.ContextLengthError("4000", 2048), 400, "context_length_exceeded"),
        (errors.UnauthorisedError("m"), 401, "invalid_api_key"),
        (errors.BusyError("m", retry_after_s=7), 503, "busy"),
        (errors.UnsupportedError("m"), 501, "unsupported"),
        (errors.DamagedRecordError("m"), 500, "bank"),
        (errors.NumericsError("m"), 500, "numerics"),
        (errors.OutOfMemoryError("m"), 503, "out_of_memory"),
        (errors.ModelError("m"), 500, "internal"),
    ],
)
def test_status_and_code(error: errors.ForerunError, status: int, code: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code, problem.message) == (status, code, str(error))
    assert problem.body()["error"]["param"] == getattr(error, "param", None)


def test_the_hint_and_when_to_retry() -> None:
    problem = problem_of(errors.BusyError("full", retry_after_s=7, hint="wait"))
    assert problem.body()["error"]["hint"] == "wait"
    assert problem.response("/v1/models").headers["retry-after"] == "7"
    assert "hint" not in problem_of(errors.BankError("m")).body()["error"]


def test_an_internal_error_discloses_nothing() -> None:
    problem = problem_of(ValueError("secret"))
    assert problem.status == 500
    assert "secret" not in str(problem.body())


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.BadRequestError("m"), 400, "invalid_request_error"),
        (errors.ContextLengthError("4000", 2048), 400, "invalid_request_error"),
        (errors.UnauthorisedError("m"), 401, "authentication_error"),
        (errors.BusyError("m", retry_after_s=7), 529, "overloaded_error"),
        (errors.NumericsError("m"), 500, "api_error"),
    ],
)
def test_anthropics_shape_on_its_routes(error: errors.ForerunError, status: int, kind: str) -> None:
    response = problem_of(error).response("/v1/messages")
    message = str(error) + (f" ({error.hint})" if error.hint else "")
    assert (response.status_code, json.loads(response.body)) == (status, {"type": "error", "error": {"type": kind, "message": message}})
    assert (response.headers.get("retry-after") == "7") == isinstance(error, errors.BusyError)


def test_anthropics_message_carries_the_hint() -> None:
    assert problem_of(errors.BankError("m", hint="h")).anthropic_body()["error"]["message"] == "m (h)"
