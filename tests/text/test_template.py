import json
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import BadRequestError, ModelError
from forerun.text.template import Template
from forerun.values import Chat


def chat(*messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = (), **args: Any) -> Chat:
    return Chat(messages=messages, tools=tools, template_args=args)


def render(source: str, conversation: Chat, *, add_generation_prompt: bool = False) -> str:
    return Template(source, {"bos_token": "<s>"}).render(conversation, add_generation_prompt=add_generation_prompt)


HELLO = {"role": "user", "content": "hello"}


def test_the_demo_model_uses_chatml(template: Template) -> None:
    text = template.render(chat({"role": "system", "content": "Be brief."}, HELLO), add_generation_prompt=True)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_arguments_reach_the_template(template: Template) -> None:
    text = template.render(chat(HELLO, enable_thinking=False), add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_arguments_cannot_replace_the_conversation() -> None:
    conversation = chat(HELLO, messages=[], add_generation_prompt=True)
    assert render("{{ messages | length }}{{ tools }}{{ add_generation_prompt }}", conversation) == "1NoneFalse"


def test_json_preserves_order_and_letters() -> None:
    tool = {"name": "b", "a": "<é & '日'>"}
    assert render("{{ tools[0] | tojson }}", chat(tools=(tool,))) == json.dumps(tool, ensure_ascii=False)
    assert render("{{ tools[0] | tojson(indent=1) }}", chat(tools=(tool,))) == json.dumps(tool, ensure_ascii=False, indent=1)


def test_blocks_leave_no_space_and_loops_can_break() -> None:
    source = "{% for m in messages %}\n    {% if loop.index == 2 %}\n        {% break %}\n    {% endif %}\n{{ m.content }}\n{% endfor %}"
    assert render(source, chat(HELLO, HELLO)) == "hello\n"


def test_named_tokens_and_the_date() -> None:
    assert render("{{ bos_token }}{{ strftime_now('%Y') | length }}", chat(HELLO)) == "<s>4"


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no user here') }}", "{{ messages[0].missing.deeper }}", "{{ messages[0].content + 1 }}"]
)
def test_a_refusal_is_the_callers_error(source: str) -> None:
    with pytest.raises(BadRequestError, match=r"no user here|missing|concatenate") as caught:
        render(source, chat(HELLO))
    assert caught.value.param == "messages"


def test_a_template_cannot_reach_python() -> None:
    with pytest.raises(BadRequestError, match="unsafe"):
        render("{{ messages.__class__.__mro__ }}", chat(HELLO))


def test_a_template_cannot_change_the_messages() -> None:
    with pytest.raises(BadRequestError):
        render("{{ messages.append(1) }}", chat(HELLO))


def test_a_broken_template_is_the_models_error() -> None:
    with pytest.raises(ModelError, match="does not compile"):
        Template("{% if %}", {})


def test_where_a_template_is_found(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no chat template"):
        Template.load(tmp_path)
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}"}]
    config = {"chat_template": several, "eos_token": {"content": "<end>"}, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    listed = Template.load(tmp_path)
    assert listed.render(chat(HELLO), add_generation_prompt=False) == "<end>"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Template.load(tmp_path).render(chat(HELLO), add_generation_prompt=False) == "file"
    assert Template.load(tmp_path).digest != listed.digest
    assert Template.load(folder).digest == Template.load(folder).digest
