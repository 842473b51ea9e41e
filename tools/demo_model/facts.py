"""What `ast` can read off a Python file: its functions and classes, their arguments, return values and docstrings.

Knows nothing of conversations; everything the demo model's training conversations claim about code comes from here.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function or method as it stands in its file.

    owner: its class. line: of the `def`, 1-based. code: dedented, decorators included. calls: sources of what is called.
    """

    name: str
    owner: str | None
    line: int
    num_lines: int
    code: str
    code_without_doc: str
    doc: str
    summary: str
    signature: str
    arguments: tuple[str, ...]
    returns: tuple[str, ...]
    raises: tuple[str, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Class:
    """A class at the top level of a file. `line` is 1-based."""

    name: str
    line: int
    summary: str


@dataclass(frozen=True)
class SourceFile:
    """A file of a package: the path that is shown to the model, and what is in it. Empty facts: it is no Python, or does not parse."""

    path: str
    text: str
    functions: tuple[Function, ...]
    classes: tuple[Class, ...]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0] or "."

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def repository(self) -> str:
        return self.path.split("/")[0]

    @property
    def top_level(self) -> tuple[Function, ...]:
        """Functions that are not methods."""
        return tuple(function for function in self.functions if not function.owner)


def read_source(path: str, text: str) -> SourceFile:
    """The facts of a Python file, functions and methods in their order."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        body = []
    lines = text.split("\n")
    classes = tuple(_class(node) for node in body if isinstance(node, ast.ClassDef))
    return SourceFile(path, text, tuple(_function(node, owner, lines) for node, owner in _definitions(body)), classes)


def first_sentence(doc: str, limit: int = 240) -> str:
    """The first paragraph of a docstring on one line, cut at the end of a sentence if it is longer than `limit` characters."""
    paragraph = " ".join(doc.strip().split("\n\n")[0].split())
    if len(paragraph) <= limit:
        return paragraph
    cut = paragraph[:limit].rfind(". ")
    return paragraph[: cut + 1] if cut > 40 else paragraph[:limit].rsplit(" ", 1)[0] + "..."


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[FunctionNode, str | None]]:
    for node in body:
        if isinstance(node, FunctionNode):
            yield node, None
        elif isinstance(node, ast.ClassDef):
            yield from ((member, node.name) for member in node.body if isinstance(member, FunctionNode))


def _class(node: ast.ClassDef) -> Class:
    return Class(node.name, node.lineno, first_sentence(ast.get_docstring(node) or ""))


def _function(node: FunctionNode, owner: str | None, lines: list[str]) -> Function:
    start, stop = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.end_lineno or node.lineno
    code = textwrap.dedent("\n".join(lines[start - 1 : stop]))
    doc = ast.get_docstring(node) or ""
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    return Function(
        name=node.name,
        owner=owner,
        line=node.lineno,
        num_lines=stop - start + 1,
        code=code,
        code_without_doc=_without_doc(code, node, start) if doc else code,
        doc=doc,
        summary=first_sentence(doc),
        signature=f"{node.name}({ast.unparse(node.args)})",
        arguments=tuple(argument.arg for argument in arguments if argument.arg not in ("self", "cls")),
        returns=_distinct((n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value), 120),
        raises=_distinct((_raised(n.exc) for n in ast.walk(node) if isinstance(n, ast.Raise) and n.exc), 60),
        calls=_distinct((n.func for n in ast.walk(node) if isinstance(n, ast.Call)), 40),
    )


def _without_doc(code: str, node: FunctionNode, start: int) -> str:
    """The code with its docstring taken out, unless nothing else is in it."""
    doc, *rest = node.body
    if not rest:
        return code
    lines = code.split("\n")
    return "\n".join(lines[: doc.lineno - start] + lines[(doc.end_lineno or doc.lineno) - start + 1 :])


def _raised(exception: ast.expr) -> ast.expr:
    return exception.func if isinstance(exception, ast.Call) else exception


def _distinct(expressions: Iterable[ast.expr], limit: int) -> tuple[str, ...]:
    """Sources of the expressions, those below `limit` characters, each once."""
    return tuple(dict.fromkeys(text for text in map(ast.unparse, expressions) if len(text) < limit))
