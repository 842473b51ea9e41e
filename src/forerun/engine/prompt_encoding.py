"""Encodes prompts so that echoed answers get the token ids that the model sampled, though the tokenizer would split their text differently;
after a restart too, from the stored conversation. Knows no caches.
"""

from __future__ import annotations

from forerun.bank.bank import Bank
from forerun.bank.tier.history import Memo
from forerun.text.answer_memory import RememberedAnswer
from forerun.text.prompt import Prompt, Prompter, SampledAnswer
from forerun.values import Chat, Job, TokenPrompt

_MAX_LOOKUPS = 64


def encode(prompter: Prompter, bank: Bank, job: Job, context_tokens: int) -> Prompt:
    """The job's prompt, in the stored conversation's tokens as far as the texts agree. Raises what `Prompter.encode` raises."""
    if isinstance(job.prompt, Chat) and job.uses_bank:
        for data in bank.memos(prompter.missing_answers(job.prompt, tenant=job.tenant), tenant=job.tenant):
            prompter.load_answer(RememberedAnswer.decode(data), tenant=job.tenant)
    prompt = prompter.encode(job.prompt, tenant=job.tenant, context_tokens=context_tokens)
    if isinstance(job.prompt, TokenPrompt) or not job.uses_bank:
        return prompt
    for _ in range(_MAX_LOOKUPS):  # each extends the agreement to the conversation's next block, or to where the texts diverge
        shared, stored = bank.recall(prompt.tokens, tenant=job.tenant)
        if not stored:
            break
        prompter.remember_stored(shared, stored, tenant=job.tenant)
        longer = prompter.encode(job.prompt, tenant=job.tenant, context_tokens=context_tokens)
        if longer.tokens == prompt.tokens:
            break
        prompt = longer
    return prompt


def learn(prompter: Prompter, job: Job, prompt: Prompt, answer: SampledAnswer, session: str) -> Memo | None:
    """Remember the answer to the job's prompt in the conversation of this id. Returns the memo from which another process can load it, None
    if there is none.
    """
    remembered = prompter.remember_answer(job.prompt, prompt, answer, tenant=job.tenant, session=session)
    return Memo(remembered.key, len(prompt.tokens) + len(answer.sampled), remembered.encode()) if remembered else None
