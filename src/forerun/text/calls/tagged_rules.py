"""The grammar of a call with tags around each argument, in the line breaks of the models' templates. A string is text as it stands.

A value holds nothing that TaggedValue would take for its end or for a call of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from forerun.text.calls.buffer import NAME, TagPattern
from forerun.text.calls.rules import Property, RuleWriter, ToolSchema
from forerun.text.calls.tagged_value import TaggedFormat
from forerun.text.calls.text_rules import value_rules

BLANK = r"[\t-\r \x1c-\x1f]*"
KEY = r"/[^<>{}\s\"]+/"


def tagged_call(tags: TaggedFormat, writer: RuleWriter, tool: ToolSchema, opened: str) -> str:
    """The rest of a call of the tool, behind `opened`."""
    for name in tool.unheld:
        writer.drop((name,), "it is not held for all arguments together")
    is_first = opened == tags.opens[0]
    head = ("\n" if tags.is_padded and is_first else "") + _head(tags, tool.name, opened)
    line = '"\\n"' if tags.is_padded else '"\\n"?'
    ending = "\n".join(tags.ends[0]) if is_first else tags.ends[0][0]
    return f"{writer.literal(head)} {line} {_arguments(tags, writer, tool, line)} {writer.literal(ending)}"


def _head(tags: TaggedFormat, name: str, opened: str) -> str:
    """What stands between the opening tag and the first argument."""
    parts = dict(tags.heads)[opened][0]
    return "".join(part if isinstance(part, str) else name for part in (parts[:-1] if tags.is_followed else parts))


def _arguments(tags: TaggedFormat, writer: RuleWriter, tool: ToolSchema, line: str) -> str:
    without = list(_not_in_values(tags))
    if tool.takes_any:
        name = writer.define("KEY", KEY)
        head = f"{writer.literal(tags.opening)} {name} {_named(tags, writer, line)}"
        return f"( {head} {writer.text((), without, _closing(tags), ())}{'' if tags.is_padded else f' {line}'} )*"
    return " ".join(_argument(tags, writer, tool, each, line, without) for each in tool.properties() if _can_be_named(each, writer))


def _can_be_named(each: Property, writer: RuleWriter) -> bool:
    if NAME.fullmatch(each.name):
        return True
    if each.is_required:
        writer.drop(each.path, "no argument can have this name")
    return False


def _argument(tags: TaggedFormat, writer: RuleWriter, tool: ToolSchema, each: Property, line: str, without: Sequence[str]) -> str:
    head = f"{writer.literal(tags.opening + each.name)} {_named(tags, writer, line)}"
    if tool.input_grammar:
        value = f"{writer.nested(tool.input_grammar)} {writer.literal(_closing(tags))}"
    else:
        value = value_rules(writer, tool, each, without, _closing(tags))
    rule = writer.rule(f"{head} {value}{'' if tags.is_padded else f' {line}'}")
    return rule if each.is_required else f"{rule}?"


def _named(tags: TaggedFormat, writer: RuleWriter, line: str) -> str:
    """What stands between the name of an argument and its value."""
    first, *rest = map(writer.literal, tags.naming)
    return " ".join([first, *(f"{line} {each}" for each in rest), *([line] if tags.is_padded else [])])


def _closing(tags: TaggedFormat) -> str:
    return f"\n{tags.closing}\n" if tags.is_padded else tags.closing


def _not_in_values(tags: TaggedFormat) -> Iterator[str]:
    """Expressions of what TaggedValue takes for the end of a value, or for a call within it with an argument."""
    calls = [
        re.escape(tag) + _expression(pattern) for tag, patterns in tags.heads for pattern in patterns if pattern[-1] != tags.ends[0][-1]
    ]
    opens, ends = _any(map(re.escape, tags.opens)), _any(_expression(end) for end in tags.ends)
    yield re.escape(tags.closing) + BLANK + _any(map(re.escape, tags.after_value))
    yield _any(calls) + ("" if tags.is_followed else BLANK + re.escape(tags.opening))
    yield f"{ends}{BLANK}{opens}"
    if not tags.is_padded:
        yield re.escape(tags.closing)


def _expression(pattern: TagPattern) -> str:
    return "".join(BLANK + (re.escape(part) if isinstance(part, str) else part.pattern) for part in pattern)


def _any(expressions: Iterable[str]) -> str:
    return f"({'|'.join(expressions)})"
