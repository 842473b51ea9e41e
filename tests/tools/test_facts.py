"""Facts read from a Python source: functions, classes, first sentences."""

from facts import first_sentence, read_source

SOURCE = '''
import functools


@functools.cache
def area(width: int, height: int = 1) -> int:
    """Return the area of a rectangle.

    More about it.
    """
    if width < 0:
        raise ValueError("negative")
    return multiply(width, height)


class Box:
    """A box that opens."""

    def open(self, *, slowly: bool) -> None:
        return None

    def shut(self):
        """Only a docstring."""
'''


def test_a_function_has_its_decorators_and_no_docstring() -> None:
    area = read_source("pkg/shapes.py", SOURCE).functions[0]
    assert (area.name, area.owner, area.line, area.num_lines) == ("area", None, 6, 9)
    assert area.signature == "area(width: int, height: int=1)"
    assert area.code.startswith("@functools.cache\ndef area")
    assert area.code_without_doc == area.code.replace('    """Return the area of a rectangle.\n\n    More about it.\n    """\n', "")
    assert area.summary == "Return the area of a rectangle."
    assert (area.arguments, area.returns, area.raises) == (("width", "height"), ("multiply(width, height)",), ("ValueError",))
    assert area.calls == ("multiply", "ValueError")


def test_methods_follow_their_class_and_a_lone_docstring_stays() -> None:
    file = read_source("pkg/shapes.py", SOURCE)
    assert [(f.owner, f.name) for f in file.functions] == [(None, "area"), ("Box", "open"), ("Box", "shut")]
    assert file.functions[1].arguments == ("slowly",)
    assert file.functions[2].code_without_doc == file.functions[2].code
    assert [(c.name, c.summary) for c in file.classes] == [("Box", "A box that opens.")]
    assert (file.folder, file.name, file.repository) == ("pkg", "shapes.py", "pkg")


def test_a_source_that_does_not_parse_has_no_facts() -> None:
    file = read_source("pkg/broken.py", "def broken(:\n")
    assert (file.functions, file.classes) == ((), ())


def test_a_long_paragraph_is_cut_at_a_sentence() -> None:
    first = "A sentence that is long enough to be kept as it is."
    assert first_sentence(f"{first} {'And then on and on. ' * 20}", limit=60) == first
    assert first_sentence("word " * 20, limit=22) == "word word word word..."
