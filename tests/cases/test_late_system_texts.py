"""A system text that a client adds to a conversation costs no reuse, whatever the template does with system messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cases.rendered import CHAT, MESSAGES, Answers, answers

from forerun.text.template import Template

START, END = "<|im_start|>", "<|im_end|>\n"
TURNS = f"""{{% for m in messages if m.role != 'system' %}}{START}{{{{ m.role }}}}
{{{{ m.content }}}}{END}{{% endfor %}}{{% if add_generation_prompt %}}{START}assistant
{{% endif %}}"""
SYSTEM = "messages | selectattr('role', 'equalto', 'system')"
TEMPLATES = {
    "moves all to the front": f"{{% for m in messages if m.role == 'system' %}}{START}system\n{{{{ m.content }}}}{END}{{% endfor %}}",
    "renders the last": f"{START}system\n{{{{ ({SYSTEM} | list)[-1].content }}}}{END}",
    "merges all": f"{START}system\n{{{{ {SYSTEM} | map(attribute='content') | join('\\n') }}}}{END}",
}
FIRST, LATE = "Be brief. " * 40, "Files changed."


@pytest.fixture(params=TEMPLATES)
def hoisting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    monkeypatch.setattr(Template, "load", lambda folder: Template(TEMPLATES[request.param] + TURNS, {}))
    with answers() as server:
        yield server


def bodies(path: str) -> list[dict[str, Any]]:
    """Two turns; a system text is new in the second."""
    system = {"role": "system", "content": FIRST}
    first = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
    more = [{"role": "assistant", "content": "No."}, {"role": "system", "content": LATE}, {"role": "user", "content": "Then?"}]
    common = {"max_tokens": 4, "temperature": 0}
    if path == MESSAGES:
        return [common | {"system": FIRST, "messages": messages} for messages in (first, [*first, *more])]
    return [common | {"messages": [system, *messages]} for messages in (first, [*first, *more])]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_it_is_rendered_after_the_turn_and_the_rest_is_reused(hoisting: Answers, path: str) -> None:
    first, second = bodies(path)
    hoisting.post(path, first)
    num_before = hoisting.prompt.message_end
    report = hoisting.post(path, second).json()["forerun"]
    assert report["reused_tokens"] >= num_before
    assert report["rendering"] == ["messages[5]: the template takes no system message here; rendered as a user message in <system> tags"]
    text = hoisting.text(path, second)
    assert [text.count(each) for each in (FIRST, LATE)] == [1, 1]
    assert text.index(FIRST) < text.index("Look.") < text.index("No.") < text.index(LATE) < text.index("Then?")
