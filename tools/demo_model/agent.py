"""An agent's work on files of a repository, derived from their facts: it reads, searches, explains, edits and runs tests with tools.

The contents and the answers are true; the outputs of test runs are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from facts import Function, SourceFile
from messages import Message, call, message
from questions import describe, overview, plural, python, ticked

Task = Callable[[SourceFile, Sequence[Function]], None]


class Session:
    """The messages of one conversation; a file is read with a tool the first time that a task needs it.

    folders: the file names in each folder of the repository. Every choice is drawn from `rng`.
    """

    def __init__(self, rng: Random, folders: Mapping[str, Sequence[str]]) -> None:
        self.messages: list[Message] = []
        self._rng, self._folders = rng, folders
        self._read: set[str] = set()

    def work_on(self, file: SourceFile, num_tasks: int) -> None:
        """Append up to `num_tasks` tasks on the file; a task that does not fit the function it drew is left out."""
        small = [function for function in file.functions if function.num_lines <= 60]
        documented = [function for function in small if function.summary and function.num_lines <= 40]
        tasks = self._tasks(small, documented, file)
        for _ in range(num_tasks):
            task, pool = self._rng.choice(tasks)
            task(file, pool)

    def _tasks(self, small: list[Function], documented: list[Function], file: SourceFile) -> list[tuple[Task, Sequence[Function]]]:
        tasks: list[tuple[Task, Sequence[Function]]] = []
        if small:
            explain = (self._explain, documented or small)
            tasks += [explain, *((task, small) for task in (self._locate, self._show, self._returns, self._calls))]
        if documented:
            tasks += [(self._add_docstring, documented), (self._explain, documented)]
        if file.functions:
            tasks += [(task, file.functions) for task in (self._overview, self._rename, self._run_tests)]
        return [*tasks, (self._list_folder, ())]

    def _explain(self, file: SourceFile, pool: Sequence[Function]) -> None:
        name, path = (function := self._rng.choice(pool)).name, file.path
        self._ask(f"What does `{name}` in {path} do?", f"Explain `{name}` in `{path}`.", f"Read {path} and explain `{name}`.")
        self._read_file(file)
        self._say(f"`{name}` starts at line {function.line}.", describe(function))

    def _returns(self, file: SourceFile, pool: Sequence[Function]) -> None:
        name, returns = (function := self._rng.choice(pool)).name, function.returns
        self._ask_once(f"What does `{name}` in {file.path} return?")
        self._read_file(file)
        answer = f"`{name}` returns {' or '.join(ticked(returns[:4]))}." if returns else f"`{name}` returns nothing (`None`)."
        self._say(f"I look at the return statements of `{name}`.", answer)

    def _calls(self, file: SourceFile, pool: Sequence[Function]) -> None:
        name, calls = (function := self._rng.choice(pool)).name, function.calls
        self._ask_once(f"Which functions does `{name}` in `{file.path}` call?")
        self._read_file(file)
        answer = f"`{name}` calls {', '.join(ticked(calls[:8]))}." if calls else f"`{name}` calls nothing."
        self._say(f"I look for calls in the body of `{name}`.", answer)

    def _show(self, file: SourceFile, pool: Sequence[Function]) -> None:
        function = self._rng.choice(pool)
        self._ask(f"Show me `{function.name}` from {file.path}.", f"Print the code of `{function.name}` in {file.path}.")
        self._read_file(file)
        self._say(f"I quote `{function.name}` from the file.", python(function.code))

    def _locate(self, file: SourceFile, pool: Sequence[Function]) -> None:
        name, line = (function := self._rng.choice(pool)).name, function.line
        self._ask(f"Where is `{name}` defined?", f"Find the definition of `{name}`.")
        found = f"{file.path}:{line}:{_line(file, function)}"
        self._act(f"I search for the definition of `{name}`.", "grep", {"pattern": f"def {name}", "path": file.repository}, found)
        self._say(None, f"`{name}` is defined in `{file.path}` at line {line}.")

    def _overview(self, file: SourceFile, _pool: Sequence[Function]) -> None:
        path = file.path
        self._ask(f"Which functions are in {path}?", f"List the functions in `{path}`.", f"Give me an overview of `{path}`.")
        self._read_file(file)
        self._say(None, overview(file) or f"`{path}` defines no functions.")

    def _add_docstring(self, file: SourceFile, pool: Sequence[Function]) -> None:
        name, head, path = (function := self._rng.choice(pool)).name, _line(file, function), file.path
        if f"def {name}" not in head or not head.rstrip().endswith(":"):
            return
        self._ask(f"Put a one-line docstring on `{name}` in {path}.", f"Write a short docstring for `{name}` in `{path}`.")
        self._read_file(file)
        indent = " " * (len(head) - len(head.lstrip()) + 4)
        thought = f"I replace the line that starts `{name}` by itself and a docstring."
        self._edit(thought, file, head, f'{head}\n{indent}"""{function.summary}"""')
        self._say(None, f'Done: `{name}` in `{path}` now has the docstring "{function.summary}"')

    def _rename(self, file: SourceFile, pool: Sequence[Function]) -> None:
        name, head = (function := self._rng.choice(pool)).name, _line(file, function).strip()
        bare = name.strip("_")
        new = self._rng.choice([f"{name}_new", f"do_{bare}", f"{name.rstrip('_')}_value", f"old_{bare}"])
        if f"def {name}(" not in head:
            return
        self._ask_once(f"Rename `{name}` in {file.path} to `{new}`.")
        self._read_file(file)
        self._edit(f"The definition is at line {function.line}.", file, head, head.replace(f"def {name}(", f"def {new}("))
        self._say(None, f"I renamed `{name}` to `{new}` in `{file.path}`.")

    def _run_tests(self, file: SourceFile, pool: Sequence[Function]) -> None:
        self._ask("Run the tests.", f"Run the tests for {file.path}.", "Do the tests pass?")
        tests = f"tests/test_{file.name.removesuffix('.py')}.py"
        passed, fails = self._rng.randint(2, 60), self._rng.random() < 0.3
        failing = f"test_{self._rng.choice(pool).name.strip('_')}"
        duration = f"{self._rng.random() * 9:.2f}s"
        if fails:
            output = f"FAILED {tests}::{failing} - AssertionError\n1 failed, {passed} passed in {duration}"
            answer = f"One test fails and {passed} pass. The failing one is `{failing}` in `{tests}`: it ends with an `AssertionError`."
        else:
            output, answer = f"{'.' * passed}\n{passed} passed in {duration}", f"Yes, all {passed} tests pass."
        self._act("I run pytest on the test file.", "run_command", {"command": f"pytest -q {tests}"}, output)
        self._say(None, answer)

    def _list_folder(self, file: SourceFile, _pool: Sequence[Function]) -> None:
        folder, there = file.folder, self._folders.get(file.folder, [file.name])
        names = sorted(set(self._rng.sample(there, min(len(there), self._rng.randint(2, 14)))))
        self._ask(f"What is in `{folder}`?", f"List the files in {folder}.")
        self._act(None, "list_dir", {"path": folder}, "\n".join(names))
        self._say(None, f"`{folder}` holds {len(names)} file{plural(len(names))}: {', '.join(ticked(tuple(names)))}.")

    def _ask(self, *wordings: str) -> None:
        self._ask_once(self._rng.choice(wordings))

    def _ask_once(self, question: str) -> None:
        self.messages.append(message("user", question))

    def _say(self, thought: str | None, text: str) -> None:
        self.messages.append(message("assistant", text, thought))

    def _act(self, thought: str | None, tool: str, arguments: Mapping[str, str], result: str, remark: str = "") -> None:
        self.messages += [call(remark, thought, tool, arguments), message("tool", result)]

    def _edit(self, thought: str, file: SourceFile, old: str, new: str) -> None:
        self._act(thought, "edit_file", {"path": file.path, "old_text": old, "new_text": new}, f"Edited {file.path}.")

    def _read_file(self, file: SourceFile) -> None:
        path = file.path
        if path in self._read:
            return
        remark = self._rng.choice(["", "", f"I will read `{path}`."])
        self._act(f"I have not seen `{path}` yet, so I read it first.", "read_file", {"path": path}, file.text.rstrip(), remark)
        self._read.add(path)


def _line(file: SourceFile, function: Function) -> str:
    """The line of the file in which the function's `def` stands."""
    return file.text.split("\n")[function.line - 1]
