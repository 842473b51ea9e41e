"""Questions about one function or file, answered from its facts alone. Each builder draws its wording from `rng` and from nothing else."""

from __future__ import annotations

from random import Random

from facts import Class, Function, SourceFile
from messages import Exchange


def ask_write(rng: Random, function: Function) -> Exchange:
    """From docstring to function."""
    name, summary, task = function.name, function.summary, function.summary.rstrip(".")
    question = rng.choice(
        [
            f"Write a Python function `{function.signature}`. {summary}",
            f"Implement `{name}` in Python: {lower_first(task)}.",
            f"Write a function named `{name}` that does this: {lower_first(task)}.",
            f"Please write `{name}` in Python. {summary}",
            f"Write a Python function to {lower_first(task)}.",
        ]
    )
    arguments = f" with the arguments {', '.join(function.arguments[:6])}" if function.arguments else ""
    thought = f"The user wants the function `{name}`{arguments}. It should do this: {lower_first(task)}."
    return Exchange(question, thought, rng.choice(["", f"Here is `{name}`:\n\n"]) + python(function.code))


def ask_explain(rng: Random, function: Function) -> Exchange:
    """From function to explanation."""
    wordings = ["What does this function do?", "Explain this function.", "Explain what this code does.", f"What does `{function.name}` do?"]
    question = f"{rng.choice(wordings)}\n\n{python(function.code_without_doc)}"
    arguments, returns = len(function.arguments), len(function.returns)
    calls = f"it calls {', '.join(ticked(function.calls[:4]))}, " if function.calls else ""
    thought = (
        f"I look at `{function.name}`: {arguments} argument{plural(arguments)}, {calls}"
        f"and it has {returns} different return value{plural(returns)}."
    )
    answer = describe(function)
    if function.arguments and rng.random() < 0.5:
        answer += f"\n\nArguments:\n{bullets(function.arguments[:10])}"
    return Exchange(question, thought, answer)


def ask_returns(rng: Random, function: Function) -> Exchange:
    """From function to its return statements."""
    name, returns = function.name, function.returns
    wordings = [f"What does `{name}` return?", "What is returned by this function?"]
    question = f"{rng.choice(wordings)}\n\n{python(function.code_without_doc)}"
    found = "is 1" if len(returns) == 1 else f"are {len(returns)}"
    thought = f"I look for the return statements in `{name}`. There {found}."
    if len(returns) == 1:
        return Exchange(question, thought, f"`{name}` returns `{returns[0]}`.")
    return Exchange(question, thought, f"`{name}` can return {len(returns)} different values:\n\n{bullets(returns)}")


def ask_complete(rng: Random, function: Function) -> Exchange:
    """From the first part of a function to the whole."""
    lines = function.code.split("\n")
    shown = rng.randint(1, max(1, len(lines) * 2 // 3))
    question = f"{rng.choice(['Complete this function.', 'Finish this code.'])}\n\n" + python("\n".join(lines[:shown]))
    return Exchange(question, f"The code starts `{function.name}`; I continue after line {shown}.", python(function.code))


def ask_docstring(rng: Random, function: Function) -> Exchange:
    """From function to docstring."""
    wording = rng.choice(["Write a docstring for this function.", "Add a docstring."])
    doc = function.doc if len(function.doc) < 600 else function.summary
    thought = f"The docstring should say what `{function.name}` does in one line first."
    return Exchange(f"{wording}\n\n{python(function.code_without_doc)}", thought, python(f'"""{doc}"""'))


def ask_overview(rng: Random, file: SourceFile) -> Exchange:
    """From a whole file to what it defines."""
    wordings = [
        "List the functions in this file.",
        "Which functions and classes does this file define?",
        "Give me an overview of this file.",
    ]
    question = f"{rng.choice(wordings)}\n\n`{file.path}`:\n\n{python(file.text.rstrip())}"
    thought = f"The file has {len(file.top_level)} functions at the top level and {len(file.classes)} classes."
    return Exchange(question, thought, overview(file))


def describe(function: Function) -> str:
    """A short description of a function: its summary or its arguments, what it returns and what it raises."""
    parts = [f"`{function.name}`: {_closed(function.summary)}" if function.summary else _arguments_of(function)]
    if function.returns:
        parts.append(f"It returns {' or '.join(ticked(function.returns[:3]))}.")
    if function.raises:
        parts.append(f"It can raise {', '.join(ticked(function.raises[:3]))}.")
    return " ".join(parts)


def overview(file: SourceFile) -> str:
    """The functions and classes of a file; "" if it defines none."""
    parts = [_class_overview(defined, file) for defined in file.classes[:12]]
    if count := len(file.top_level):
        listed = [f"- `{f.name}`" + (f": {f.summary}" if f.summary else "") for f in file.top_level[:30]]
        parts.insert(0, f"It defines {count} function{plural(count)}:\n\n" + "\n".join(listed))
    return "\n\n".join(parts)


def lower_first(text: str) -> str:
    """The text with a small first letter, unless it begins with an acronym."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def python(code: str) -> str:
    """A fenced block of Python."""
    return f"```python\n{code}\n```"


def ticked(names: tuple[str, ...]) -> list[str]:
    """Each name in backticks."""
    return [f"`{name}`" for name in names]


def bullets(names: tuple[str, ...]) -> str:
    """A list with one name a line."""
    return "\n".join(f"- {name}" for name in ticked(names))


def plural(count: int) -> str:
    """The ending of a noun that is counted."""
    return "" if count == 1 else "s"


def _closed(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else sentence + "."


def _arguments_of(function: Function) -> str:
    where = f"The method `{function.owner}.{function.name}`" if function.owner else f"The function `{function.name}`"
    count = len(function.arguments)
    if not count:
        return f"{where} takes no arguments."
    return f"{where} takes {count} argument{plural(count)}: {', '.join(ticked(function.arguments[:8]))}."


def _class_overview(defined: Class, file: SourceFile) -> str:
    methods = tuple(function.name for function in file.functions if function.owner == defined.name)
    summary = f" ({defined.summary.rstrip('.')})" if defined.summary else ""
    has = f"has the methods {', '.join(ticked(methods[:20]))}." if methods else "has no methods."
    return f"The class `{defined.name}`{summary} {has}"
