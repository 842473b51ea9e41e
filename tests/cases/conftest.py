from collections.abc import Iterator

import pytest
from tests.cases.rendered import Answers, answers


@pytest.fixture(scope="module")
def server() -> Iterator[Answers]:
    with answers() as found:
        yield found
