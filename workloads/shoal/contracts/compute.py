"""What an accepted file took to compute: a standard estimate of floating-point operations. Pure."""

from pydantic import Field

from shoal.contracts.base import Contract


class Compute(Contract):
    """Floating-point operations that an accepted file stands for, as its validator counted it: a standard estimate, not a measurement."""

    parameters: int = Field(ge=1, le=1 << 50, description="of the policy, all of them; tied weights once")
    prompt_tokens: int = Field(ge=0, le=1 << 40, description="of each group's prompt, once")
    flops: float = Field(ge=0.0, description="`forward_flops` of these and the file's completion tokens")


def forward_flops(parameters: int, prompt_tokens: int, completion_tokens: int) -> float:
    """Operations of one forward pass over a file: 2 for each parameter and token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).

    A group's prompt counts once, because an engine computes it once for all completions sampled from it; a continuation's prompt is a beginning of
    the completion that it continues, and counts there. Attention over the context is left out, and all experts of a mixture are counted.
    """
    return 2.0 * float(parameters) * float(prompt_tokens + completion_tokens)


def compute_of(parameters: int, prompt_tokens: int, completion_tokens: int) -> Compute:
    """The compute of a file from what was counted."""
    return Compute(
        parameters=parameters,
        prompt_tokens=prompt_tokens,
        flops=forward_flops(parameters, prompt_tokens, completion_tokens),
    )
