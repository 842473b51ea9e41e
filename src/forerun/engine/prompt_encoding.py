"""What a client sends back becomes the very tokens that the model sampled, though the tokenizer would split its text otherwise: also
after a restart, from what is stored of the conversation. Knows no caches.
"""

from __future__ import annotations

from forerun.bank.bank import Bank
from forerun.bank.tier.history import Memo
from forerun.text.answer_memory import RememberedAnswer
from forerun.text.prompt import Prompt, Prompter, SampledAnswer
from forerun.values import Chat, Job, TokenPrompt

_MOST_LOOKS = 64


def encode(prompter: Prompter, bank: Bank, job: Job) -> Prompt:
    """The job's prompt, in the tokens of the stored conversation as far as it says the same. Raises what `Prompter.encode` raises."""
    if isinstance(job.prompt, Chat) and job.uses_bank:
        for data in bank.memos(prompter.missing_answers(job.prompt, tenant=job.tenant), tenant=job.tenant):
            prompter.load_answer(RememberedAnswer.decode(data), tenant=job.tenant)
    prompt = prompter.encode(job.prompt, tenant=job.tenant)
    if isinstance(job.prompt, TokenPrompt) or not job.uses_bank:
        return prompt
    for _ in range(_MOST_LOOKS):  # each lets the prompt follow the conversation to where their texts differ, or to its next block
        shared, stored = bank.recall(prompt.tokens, tenant=job.tenant)
        if not stored:
            break
        prompter.remember_stored(shared, stored, tenant=job.tenant)
        again = prompter.encode(job.prompt, tenant=job.tenant)
        if again.tokens == prompt.tokens:
            break
        prompt = again
    return prompt


def learn(prompter: Prompter, job: Job, prompt: Prompt, answer: SampledAnswer) -> Memo | None:
    """Remember the answer to the job's prompt. Returns the memo that makes another process remember it, None if none would."""
    given = prompter.remember_answer(job.prompt, prompt, answer, tenant=job.tenant)
    return Memo(given.key, len(prompt.tokens) + len(answer.sampled), given.encode()) if given else None
