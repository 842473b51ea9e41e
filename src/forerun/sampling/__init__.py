"""Pure functions from logits and noise to tokens. No state, no order dependence; see the modules."""

from forerun.sampling.distribution import Counts, count_prompt, distribution, has_penalty, is_finite
from forerun.sampling.draw import draw, draw_coupled
from forerun.sampling.logprobs import Logprobs, logprobs
from forerun.sampling.noise import Purpose, fresh_seed, gumbel, uniforms
from forerun.sampling.verify import Verdict, verify, verify_coupled

__all__ = [
    "Counts",
    "Logprobs",
    "Purpose",
    "Verdict",
    "count_prompt",
    "distribution",
    "draw",
    "draw_coupled",
    "fresh_seed",
    "gumbel",
    "has_penalty",
    "is_finite",
    "logprobs",
    "uniforms",
    "verify",
    "verify_coupled",
]
