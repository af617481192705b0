"""Episodes of several turns from a worker process with a real engine to the verdict: it calls the interpreter, and its file is accepted as it is."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
import tool_policy
import torch
import turn_policy
from court import DIGEST, JOB, VERSION, Court, OnePolicy, facts_of
from socket_agent import Agent

from shoal.contracts.keys import version_name
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.rollouts import read_rollouts, sampled_stretches
from shoal.contracts.run import AgentState
from shoal.environments import digest
from shoal.environments.interpreter import Interpreter
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.validation.policies import LoadedPolicy

ENVIRONMENT = Interpreter()
TASKS = ENVIRONMENT.tasks(32, seed=5)
SUM = turn_policy.call("2*3")
GIVEN = "\ntool:6\nassistant:"
EOS = turn_policy.EOS
UPDATES = 60
ADDRESS = "127.13.0.7"
PUBLIC = turn_policy.PUBLIC.model_copy(
    update={
        "environment_digest": digest(ENVIRONMENT),
        "max_sequence_length": 500,
        "sampling": turn_policy.PUBLIC.sampling.model_copy(update={"max_completion_tokens": 250}),
        "group_size": 8,
    }
)


def taught_policy(folder: Path) -> Any:
    """A model with a chat template that calls the interpreter and then answers; saved in `folder`."""
    model = tiny_policy.make_policy(folder, seed=9)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = turn_policy.TEMPLATE
    tokenizer.save_pretrained(folder)
    terms = decided(PromptSettings(), folder, tokenizer)
    answer = [*tokenizer.encode(SUM), tiny_policy.EOS, *tokenizer.encode(GIVEN + "Answer: 6"), tiny_policy.EOS]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for update in range(UPDATES):
        rows = [
            prompt_tokens(tokenizer, ENVIRONMENT, TASKS[(update * 4 + n) % len(TASKS)], None, terms) for n in range(4)
        ]
        width = max(map(len, rows)) + len(answer)
        tokens, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), -100)
        for number, prompt in enumerate(rows):
            end = len(prompt) + len(answer)
            tokens[number, :end] = torch.tensor(prompt + answer)
            labels[number, len(prompt) : end] = torch.tensor(answer)
        model(input_ids=tokens, labels=labels, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    return model


@pytest.mark.timeout(600)  # of waits on a busy machine
def test_a_worker_with_a_real_engine_calls_the_interpreter_and_its_file_is_accepted_as_it_is() -> None:
    with tempfile.TemporaryDirectory() as folder:  # short: a socket's path has at most 107 characters
        home = Path(folder)
        model = tool_policy.publish_policy(home, taught_policy)
        weights = home / "weights" / version_name(VERSION)
        tokenizer = load_tokenizer(weights)
        terms = decided(PromptSettings(), weights, tokenizer)
        public = PUBLIC.model_copy(update={"prompt": terms})
        state = AgentState(
            node=tiny_policy.NODE, state="Healthy", trainer_key=tool_policy.TRAINER.public, public=public
        )
        data = tool_policy.file_of_a_worker(home, Agent(state=state, tasks=TASKS, step=tiny_policy.STEP), ADDRESS)
        rows, _ = read_rollouts(data)
        facts = facts_of(ENVIRONMENT, TASKS, tokenizer, public, prompt=terms)
        court = Court(None, facts, OnePolicy(LoadedPolicy(VERSION, DIGEST, model)), home / "tmp")
        lease = turn_policy.LEASE
        job = JOB.model_copy(update={"lease": lease.lease, "submission": lease.submission})
        verdict = court.judge_bytes(data, job)
    assert verdict.outcome == "accept", verdict.evidence
    turns = [len(sampled_stretches(row.completion_mask)) for row in rows]
    texts = {tokenizer.decode(row.completion_tokens) for row in rows}
    assert sum(count > 1 for count in turns) >= 8, texts
    assert any(SUM + "<eos>" + GIVEN in text for text in texts), texts
    assert None not in [reward.task_reward for reward in verdict.rewards]
