import pytest
from tests.text.conftest import no_logprobs

from forerun.errors import BadRequestError
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat, Content, TokenPrompt

HELLO = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "Yes.", "reasoning_content": "Greet."}


def chat(*messages: dict[str, str], **args: object) -> Chat:
    return Chat(messages=messages, tools=(), template_args=args)


@pytest.fixture
def prompter(tokenizer: Tokenizer, template: Template) -> Prompter:
    return Prompter(tokenizer, template)


def test_the_next_turn_starts_with_the_tokens_up_to_message_end(prompter: Prompter, tokenizer: Tokenizer) -> None:
    first = prompter.encode(chat(HELLO), tenant="")
    second = prompter.encode(chat(HELLO, ANSWER, HELLO), tenant="")
    assert tokenizer.decode(first.tokens[first.message_end :]) == "<|im_start|>assistant\n<think>\n"
    assert second.tokens[: first.message_end] == first.tokens[: first.message_end]


@pytest.mark.parametrize("thinks", [True, False])
def test_whether_the_answer_starts_with_reasoning(prompter: Prompter, thinks: bool) -> None:
    assert prompter.encode(chat(HELLO, enable_thinking=thinks), tenant="").opens_reasoning is thinks


def test_a_tag_in_a_message_opens_nothing(prompter: Prompter) -> None:
    message = {"role": "user", "content": "what does <think> mean"}
    assert not prompter.encode(chat(message, enable_thinking=False), tenant="").opens_reasoning


def test_a_message_end_inside_a_word_moves_to_the_last_common_token(tokenizer: Tokenizer) -> None:
    template = Template("hel{% if add_generation_prompt %}lo{% endif %}", {})
    prompt = Prompter(tokenizer, template).encode(chat(HELLO), tenant="")
    alone = tokenizer.encode("hel", tenant="")
    common = [a for a, b in zip(alone, prompt.tokens, strict=False) if a == b]
    assert prompt.tokens == tuple(tokenizer.encode("hello", tenant=""))
    assert prompt.message_end == len(common) < len(alone)


def test_a_template_that_rewrites_the_messages_has_no_message_end(tokenizer: Tokenizer) -> None:
    template = Template("{% if add_generation_prompt %}a b c{% else %}a b d{% endif %}", {})
    prompt = Prompter(tokenizer, template).encode(chat(HELLO), tenant="")
    assert prompt.message_end == len(prompt.tokens)


def test_raw_tokens_pass_through(prompter: Prompter) -> None:
    prompt = prompter.encode(TokenPrompt((1, 2, 3)), tenant="")
    assert (prompt.tokens, prompt.message_end, prompt.opens_reasoning) == ((1, 2, 3), 3, False)
    assert prompt.answer_parser("1", no_logprobs).push("<think>x") == [Content("<think>x")]


def test_half_a_surrogate_pair_is_the_callers_error(prompter: Prompter) -> None:
    with pytest.raises(BadRequestError, match=r"surrogate.*ud83d"):
        prompter.encode(chat({"role": "user", "content": "a\ud83db"}), tenant="")
