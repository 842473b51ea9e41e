"""The generated pages are as the program would write them; `python -m tools.pages` does."""

from __future__ import annotations

import pytest
from tools.pages import DOCS, PAGES, page


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == page(name), "run `python -m tools.pages`"
