"""How the prompts of a run are made: what a person chooses (`PromptSettings`), and what prepare makes of it (`PromptTerms`).

Prepare looks at the tokenizer once and decides what was left open. It pins the result in `prepared.json`, with a digest of the tokenizer.
Workers, validators and evaluation take it from there and never decide again. The rendering is in `shoal.environments.prompts`.
"""

from typing import Annotated, Any, Literal

import rfc8785
from pydantic import AfterValidator, Field, StringConstraints

from shoal.contracts.base import Contract, Sha256Hex, SpecModel, unset

RESERVED_ARGUMENTS = frozenset(
    {"add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "conversation", "documents"}
    | {
        "eos_token",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
    }
    | {"tokenize", "tokenizer_kwargs", "tools", "truncation"}
)
"""Names that the rendering itself, or transformers, gives a meaning."""
LONGEST_ARGUMENTS = 10_000

PromptText = Annotated[str, StringConstraints(min_length=1, max_length=100_000)]


def _usable(given: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(RESERVED_ARGUMENTS & given.keys()):
        raise ValueError(f"{', '.join(taken)}: set by the rendering itself; allowed: arguments of the model's template")
    if any(not name.isidentifier() for name in given):
        raise ValueError(
            "a name is not an identifier; allowed: letters, digits and underscores, as the template has them"
        )
    if len(rfc8785.dumps(given)) > LONGEST_ARGUMENTS:
        raise ValueError(f"more than {LONGEST_ARGUMENTS} characters of JSON")
    return given


TemplateArguments = Annotated[
    dict[str, Any],
    Field(max_length=32, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
    AfterValidator(_usable),
]
"""Names to JSON values."""


class PromptSettings(SpecModel):
    """How a task becomes the tokens that the model continues."""

    template: Literal["Chat", "Raw"] | None = Field(
        None,
        description="Chat: messages in the tokenizer's own chat template. Raw: the environment's text as it is, control tokens in it included."
        " Absent: Chat where the tokenizer has a template, else Raw.",
    )
    system: PromptText | None = Field(
        None, description="System message of tasks that bring none; a task's own stays. Absent: none is added."
    )
    assistant_prefix: PromptText | None = Field(
        None,
        description="Text that every answer begins with, such as `<think>` and a line end. It ends the prompt: it is neither scored nor trained on.",
    )
    template_arguments: TemplateArguments | None = Field(
        None, description="Further arguments of the chat template, such as `enable_thinking: false`."
    )


class PromptTerms(Contract):
    """How prompts are made, with nothing left open; the tokenizer that it was decided for has `tokenizer_digest`."""

    template: Literal["Chat", "Raw"]
    system: PromptText | None = None
    assistant_prefix: str = Field(default="", max_length=100_000)
    template_arguments: TemplateArguments = Field(default_factory=dict)
    tokenizer_digest: Sha256Hex = Field(
        description="over the files of tokenizer and chat template, and the stop tokens"
    )
    by_task_type: dict[str, "PromptTerms"] = Field(
        default_factory=dict,
        exclude_if=unset,
        max_length=16,
        description="of a mixture: for tasks of these sources, in the place of the fields above",
    )

    def of(self, task_type: str) -> "PromptTerms":
        """Those of a task."""
        return self.by_task_type.get(task_type, self)
