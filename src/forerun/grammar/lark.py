"""Writes grammars in llguidance's Lark: texts with special tokens in them, regular expressions, JSON schemas. Knows no call format."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from llguidance import LLMatcher, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from forerun.errors import BadRequestError
from forerun.grammar.program import LIMITS
from forerun.grammar.schema import enforceable, reason, schema_for, written
from forerun.text.calls.rules import Path
from forerun.values import OutputFormat

# Text of which length or pattern is held has no tags: counting characters and excluding tags at once takes the lexer too many states.
PLAIN = "[^<]*"


@dataclass
class Lark:
    """The rules of one grammar. specials: the texts of special tokens. rules: written so far, by name. unenforced: paths of what they do
    not hold. is_checked: each schema is looked through for what is not supported, which takes a millisecond.

    The tool whose call is being written: its path, and whether its schema is strict.
    """

    specials: Collection[str]
    is_checked: bool
    param: str
    path: Path = ()
    is_strict: bool = False
    rules: dict[str, str] = field(default_factory=dict)
    unenforced: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def literal(self, text: str) -> str:
        """The text. What of it is a special token is that token."""
        pattern = "|".join(re.escape(each) for each in sorted(self.specials, key=len, reverse=True))
        parts = re.split(f"({pattern})", text) if pattern else [text]
        return " ".join(_special(each) if each in self.specials else json.dumps(each, ensure_ascii=False) for each in parts if each)

    def rule(self, body: str) -> str:
        """A rule with this body."""
        return self._named("r", body)

    def json(self, schema: Any, path: Path) -> str:
        """A JSON value that is valid under the schema."""
        if self.is_checked:
            try:
                found = enforceable(schema, is_strict=self.is_strict, param=written((self.param, *self.path, *path)))
            except BadRequestError as error:
                self.drop(path, str(error))
                return self._named("j", f"%json {json.dumps({} if path else {'type': 'object'})}")
            self.unenforced += [f"{written((*self.path, *path))}.{each}" for each in found.dropped]
            return self._named("j", f"%json {json.dumps(found.schema)}")
        return self._named("j", f"%json {json.dumps(schema_for(schema, is_strict=self.is_strict))}")

    def text(self, terms: Sequence[str], without: Sequence[str], end: str, path: Path) -> str:
        """Text that matches all of these regular expressions (none of those that begin with ~), with nothing in it that matches one of the
        others; then the text `end`.
        """
        if self.is_checked and terms:
            alone = Lark(self.specials, False, self.param)
            if message := _refused(alone.written(alone.text(terms, without, end, path))):
                self.drop(path, message)
                terms = ()
        wanted = [f"~{_slashed(each[1:])}" if each.startswith("~") else _slashed(each) for each in terms]
        is_plain = any(not each.startswith("~") for each in terms)
        excluded = [_slashed(PLAIN)] if is_plain else [f"~{_slashed(f'(?s:.*)({each})(?s:.*)')}" for each in ["|".join(without)] if each]
        text = self._named("T", " & ".join([_slashed("(?s:.*)"), *wanted, *excluded]))  # first, since a complement alone has special tokens
        closing = self.literal(end)
        if any(each in end for each in self.specials):
            return f"{text} {closing}"
        whole = self._named("W", f"{text} {closing}")
        return whole if is_plain else self._named("E", f"{whole} & ~{_slashed(f'(?s:.*)({_plain(end)})(?s:.+)')}")

    def pattern(self, pattern: Any, path: Path) -> str | None:
        """A JSON schema's pattern as an expression of the whole text; None if it cannot be enforced."""
        term = whole_text(str(pattern))
        if not self.is_checked or not (message := refused(term)):
            return term
        self.drop(path, message)
        return None

    def drop(self, path: Path, why: str) -> None:
        """What stands at the path is not enforced. Raises BadRequestError where it must be."""
        place = written((*self.path, *path))
        if self.is_strict:
            raise BadRequestError(f"{self.param}: {place} cannot be enforced: {why}", param=self.param, hint="leave it out")
        self.unenforced.append(place)

    def nested(self, grammar: str) -> str:
        """What a grammar in Lark allows."""
        return self._named("g", f"%lark {{\n{grammar}\n}}")

    def define(self, name: str, body: str) -> str:
        """A rule of this name, which its body may refer to."""
        self.rules.setdefault(name, body)
        return name

    def written(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for name, body in self.rules.items())])

    def _named(self, kind: str, body: str) -> str:
        name = self._names.get(kind + body)
        if name is None:
            name = self._names[kind + body] = f"{kind}_{len(self.rules)}" if kind.islower() else f"{kind}{len(self.rules)}"
            self.rules[name] = body
        return name


def choice(definition: str) -> str:
    """One of a JSON list of texts."""
    return " | ".join(json.dumps(each, ensure_ascii=False) for each in json.loads(definition))


def converted(output: OutputFormat) -> str:
    """A format that is a grammar, in Lark. Raises BadRequestError."""
    try:
        return str(any_to_lark(output.definition)) if output.kind == "gbnf" else output.definition
    except Exception as error:  # the converter raises nothing narrower
        raise BadRequestError(f"{output.param} is not a GBNF grammar: {error}", param=output.param) from error


def lark_regex(pattern: str) -> str:
    """A regular expression with the classes of JSON schemas: digits and words are ASCII."""
    return str(regex_to_lark(pattern, "dw"))


def whole_text(pattern: str) -> str:
    """The expression of texts in which the pattern is found, as JSON schemas mean it."""
    return "|".join(f"({_search(each)})" for each in _alternatives(lark_regex(pattern)))


def refused(regex: str) -> str:
    """Why llguidance refuses a regular expression, "" if it does not."""
    return _refused(f"start: T\nT: {_slashed(regex)}")


def _refused(lark: str) -> str:
    is_error, messages = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(lark), limits=LIMITS)
    return reason(messages[0]) if is_error else ""


def _search(pattern: str) -> str:
    is_open_end = not pattern.endswith("$") or pattern.endswith("\\$")
    before, after = "" if pattern.startswith("^") else "(?s:.*)", "(?s:.*)" if is_open_end else ""
    return f"{before}({pattern.removeprefix('^') if is_open_end else pattern.removeprefix('^')[:-1]}){after}"


def _alternatives(pattern: str) -> list[str]:
    """The pattern cut at the bars that are in no group or class."""
    parts, depth, is_class, i, start = [], 0, False, 0, 0
    while i < len(pattern):
        char = pattern[i]
        i += 1 + (char == "\\")
        if is_class:
            is_class = char != "]"
        elif char == "[":
            is_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(pattern[start : i - 1])
            start = i
    return [*parts, pattern[start:]]


def _slashed(regex: str) -> str:
    return f"/{slashed(regex)}/"


def slashed(regex: str) -> str:
    """A regular expression as it stands between slashes in Lark."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", regex).replace("\n", "\\n")


def _plain(text: str) -> str:
    return re.sub(r"[^\w]", lambda char: f"\\x{{{ord(char[0]):x}}}", text)


def _special(text: str) -> str:
    return text
