"""Items of stored responses: those that a request continues, those that it refers to, and pages of them for people and programs.

Pure. Knows the OpenAI Responses dialect; knows no engine and no HTTP. Source: OpenAI's API reference, Responses, input items.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from forerun.errors import BadRequestError
from forerun.serve.fields import Fields
from forerun.values import StoredResponse

Value = dict[str, Any]
# The id of an item of an answer, as `Items` gives it: the id of its response, and its index there.
OUTPUT_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_([0-9]{1,6})")
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def _as_number(text: Any) -> Any:
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,9}", text) else text


QueryNumber = Annotated[int, BeforeValidator(_as_number)]


class ItemsQuery(Fields):
    """A page: at most `limit` items, in this order, that come after the one of an id."""

    after: str | None = None
    limit: QueryNumber = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"


class ItemPlace(NamedTuple):
    """Where an item of an answer is."""

    response_id: str
    at: int


def input_of(body: Mapping[str, Any]) -> tuple[Value, ...]:
    """The items of a valid request's input."""
    items = body["input"]
    return ({"type": "message", "role": "user", "content": items},) if isinstance(items, str) else tuple(items)


def conversation(chain: Sequence[StoredResponse]) -> list[Mapping[str, Any]]:
    """The items of responses that continue one another, their answers included."""
    return [item for each in chain for item in (*each.input, *each.body["output"])]


def reference_of(item: Any) -> ItemPlace | None:
    """The place to which an item refers, None if it is no reference to an item of an answer."""
    id = item.get("id") if isinstance(item, dict) and item.get("type") == "item_reference" else None
    found = OUTPUT_ID.fullmatch(id) if isinstance(id, str) else None
    return ItemPlace(f"resp_{found[1]}", int(found[2])) if found else None


def page(chain: Sequence[StoredResponse], query: ItemsQuery) -> Value:
    """The page of the items that the last response was made from. Raises BadRequestError for an unknown `after`."""
    items = _input_items(chain)[:: 1 if query.order == "asc" else -1]
    start = 0
    if query.after is not None:
        start = next((at for at, item in enumerate(items, start=1) if item["id"] == query.after), 0)
        if not start:
            raise BadRequestError(f"after: there is no item {query.after!r}", param="after", hint="take the last_id of a page")
    data = items[start : start + query.limit]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": start + len(data) < len(items)}


def _input_items(chain: Sequence[StoredResponse]) -> list[Value]:
    """The items that the last response was made from, each with an id."""
    found: list[Value] = []
    for each in chain:
        number = each.id.removeprefix("resp_")
        found += [_with_id(item, f"{number}_in{index}") for index, item in enumerate(each.input)]
        found += each.body["output"] if each is not chain[-1] else ()
    return found


def _with_id(item: Mapping[str, Any], number: str) -> Value:
    """An item as OpenAI's API lists it. number: what its id ends in, if the client gave it none."""
    kind = item.get("type") or "message"
    head = {"id": item.get("id") or f"{PREFIXES.get(kind, 'item')}_{number}", "type": kind, "status": item.get("status") or "completed"}
    content = {"content": _parts(item)} if kind == "message" else {}
    return {**item, **head, **content}


def _parts(message: Mapping[str, Any]) -> Any:
    text = message.get("content")
    if not isinstance(text, str):
        return text or []
    return [
        {"type": "output_text", "text": text, "annotations": []}
        if message.get("role") == "assistant"
        else {"type": "input_text", "text": text}
    ]
