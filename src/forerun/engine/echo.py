"""What a client sends back becomes the very tokens that the model sampled, though the tokenizer would split its text otherwise: also
after a restart, from what is stored of the conversation. Knows no caches.
"""

from __future__ import annotations

from forerun.bank.bank import Bank
from forerun.text.prompt import Prompt, Prompter
from forerun.values import Job, Raw

_MOST_LOOKS = 64


def encode(prompter: Prompter, bank: Bank, job: Job) -> Prompt:
    """The job's prompt, in the tokens of the stored conversation as far as its text is the same. Raises what `Prompter.encode` raises."""
    prompt = prompter.encode(job.prompt, tenant=job.tenant)
    if isinstance(job.prompt, Raw) or job.bank == "bypass":
        return prompt
    for _ in range(_MOST_LOOKS):  # each lets the prompt follow the conversation to where their texts differ, or to its next block
        shared, stored = bank.recall(prompt.tokens, tenant=job.tenant)
        if not stored:
            break
        prompter.learn(shared, stored, tenant=job.tenant)
        again = prompter.encode(job.prompt, tenant=job.tenant)
        if again.tokens == prompt.tokens:
            break
        prompt = again
    return prompt
