"""Making a tiny base model on the spot: tokenizer, random Qwen3, supervised warm start. For demos and tests.

In: an environment, the target lengths of the run, a size, a seed. Out: a checkpoint folder in the Hugging Face layout, in
float32, whose sampled answers are right about as often as asked for. Reinforcement learning needs a model that is
sometimes right; from random weights no group would ever carry signal. It is taught with a learner's answers, slips and
all, so that it ends up where rewards have something to teach, whatever the seed. Called by `prepare`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.tasks import Task
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import pass_rate
from shoal.environments.slips import COURSES, MadeFor, Part, Writer

HEAD_SIZE = 32
"""The smallest head that vLLM serves on CPU."""
LEARNING_RATE = 3e-3
WARM_UP_STEPS = 20
BATCH_SIZE = 64
HELD_OUT_TASKS = 256
"""Tasks kept from the warm start, on which it is measured: the standard error of the rate is 3 %."""
MEASURE_EVERY_STEPS = 4
WORTH_MEASURING = 0.3
"""Mean cross entropy above which no answer is right: 20 tokens at 0.3 nats each are all right once in 400 times."""
TEACHING_TASKS = 4096
IGNORED = -100
"""The label that torch's cross entropy leaves out."""


class WarmStartFailed(RuntimeError):
    """The model did not reach the pass rate in the steps allowed."""


@dataclass(frozen=True)
class Lesson:
    """Token ids of one example; the loss is over `completion`, which ends with the end-of-sequence token.

    `given`: places in the completion whose tokens a tool writes; they are read and not taught.
    """

    prompt: list[int]
    completion: list[int]
    given: list[int] = field(default_factory=list)


def make_model(
    folder: Path,
    environment: MadeFor,
    targets: Sequence[int | None],
    spec: GeneratedModel,
    max_length: int,
    seed: int,
    report: Callable[[int, float, float], None],
    write: Writer | None = None,
) -> float:
    """Write the checkpoint to `folder` and return its pass rate on held-out tasks, sampled at temperature 1.

    `environment` is of the class that `slips.COURSES` has for the name in `spec`. `targets` are the target lengths to ask for (None: no request).
    `max_length` is the longest sequence, in tokens. `report(step, loss, pass rate)` is called at each measurement; `write` makes the answers that are
    taught (absent: a learner's).
    Raises WarmStartFailed.
    The same arguments give the same model on the same machine and number of threads.
    """
    disable_progress_bar()
    torch.manual_seed(seed)
    chance = random.Random(seed)
    held_out, taught = _lessons_of(environment, seed)
    write = write or COURSES[spec.name][1]
    tokenizer = tokenizer_for(environment, targets, seed)
    model = random_model(spec, tokenizer, max_length)
    rate = _warm_start(model, tokenizer, environment, taught, held_out, targets, spec, chance, report, write)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return rate


def _lessons_of(environment: MadeFor, seed: int) -> tuple[list[Task], list[Task]]:
    """Held-out tasks, and those that are taught."""
    tasks = environment.tasks(TEACHING_TASKS + HELD_OUT_TASKS, seed)
    return tasks[:HELD_OUT_TASKS], tasks[HELD_OUT_TASKS:]


def tokenizer_for(environment: MadeFor, targets: Sequence[int | None], seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer that `make_model` gives the model of these arguments."""
    return train_tokenizer(
        text  # apart, as a model reads and writes them: no token may span the end of the prompt
        for task in _lessons_of(environment, seed)[1][:512]
        for text in (*(environment.prompt(task, target) for target in targets), *_parts_of_gold(environment, task))
    )


def _parts_of_gold(environment: MadeFor, task: Task) -> list[str]:
    """The gold answer, cut where a tool begins and ends to write."""
    write = next(write for kind, write in COURSES.values() if isinstance(environment, kind))
    return [text for text, _ in write(task, random.Random(0), 0.0)]


def random_model(spec: GeneratedModel, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights in float32. Embeddings are untied: with tied ones vLLM serves an old head after a swap."""
    heads = max(1, spec.hidden_size // HEAD_SIZE)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=3 * spec.hidden_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=HEAD_SIZE,
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        dtype="float32",
        **ends,
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, **ends)
    return model


def _warm_start(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    environment: MadeFor,
    taught: Sequence[Task],
    held_out: Sequence[Task],
    targets: Sequence[int | None],
    spec: GeneratedModel,
    chance: random.Random,
    report: Callable[[int, float, float], None],
    write: Writer,
) -> float:
    """Teach gold answers until the pass rate is reached, and return it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    rate = 0.0
    for step in range(1, spec.warm_start_max_steps + 1):
        lessons = [
            _lesson(
                tokenizer,
                prompt_tokens(tokenizer, environment, task, chance.choice(targets), None),
                write(task, chance, spec.warm_start_slips),
            )
            for task in chance.choices(taught, k=BATCH_SIZE)
        ]
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARM_UP_STEPS)
        loss = _teach(model, lessons, tokenizer.pad_token_id)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % MEASURE_EVERY_STEPS == 0 and loss < WORTH_MEASURING:
            asked = [(task, targets[index % len(targets)]) for index, task in enumerate(held_out)]
            rate = pass_rate(model, tokenizer, environment, asked, seed=step)
            report(step, loss, rate)
            if rate >= spec.warm_start_pass_rate:
                return rate
    raise WarmStartFailed(
        f"after {spec.warm_start_max_steps} updates {rate:.0%} of the answers are correct, but the target is"
        f" {spec.warm_start_pass_rate:.0%}; raise model.generated.warmStartMaxSteps or lower warmStartPassRate"
        f" ({spec.warm_start_slips:.0%} of what it is taught has a slip)"
    )


def _lesson(tokenizer: PreTrainedTokenizerFast, prompt: list[int], parts: Sequence[Part]) -> Lesson:
    """A lesson of a prompt's token ids and the answer's parts, each encoded by itself, as in a run."""
    completion, given = list[int](), list[int]()
    for text, taught in parts:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        given += [] if taught else range(len(completion), len(completion) + len(tokens))
        completion += tokens
    return Lesson(prompt, [*completion, tokenizer.eos_token_id], given)


def _teach(model: Qwen3ForCausalLM, lessons: Sequence[Lesson], padding: int) -> float:
    """Add the gradient of the mean cross entropy over completion tokens; returns it.

    Padding follows the text, where causal attention cannot see it.
    """
    width = max(len(lesson.prompt) + len(lesson.completion) for lesson in lessons)
    tokens = torch.full((len(lessons), width), padding)
    labels = torch.full((len(lessons), width), IGNORED)
    for row, lesson in enumerate(lessons):
        start, end = len(lesson.prompt), len(lesson.prompt) + len(lesson.completion)
        tokens[row, :end] = torch.tensor(lesson.prompt + lesson.completion)
        labels[row, start:end] = torch.tensor(lesson.completion)
        for place in lesson.given:
            labels[row, start + place] = IGNORED
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    loss.backward()
    return float(loss.detach())
