"""The list of mutants stays applicable; `python tools/mutants.py` shows that each is killed."""

import pytest
from tools.mutants import ROOT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.what)
def test_a_mutant_changes_a_line_that_is_there(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    changed = mutant.applied(text)
    assert changed != text
    compile(changed, mutant.file, "exec")
    assert all((ROOT / test.split("::")[0]).exists() for test in mutant.tests)


@pytest.mark.parametrize("text", ["other\n", "same\nsame\n"])
def test_a_line_that_is_missing_or_repeated_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="want 1"):
        Mutant("w", "f", "same", "new", []).applied(text)
