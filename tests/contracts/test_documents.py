"""Every document that crosses a process boundary: it survives the round trip, and each wrong field is refused by its name."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from samples import DOCUMENTS, NODE, run_config
from shoal.contracts import (
    admin,
    completions,
    compute,
    evaluation,
    final_model,
    islands,
    proof_profile,
    protocol,
    recipe,
    roster,
    run,
    run_parts,
    sft,
    steps,
    tasks,
    verdicts,
    weights,
)
from shoal.contracts.base import Contract, SpecModel
from shoal.crypto.canonical import canonical_bytes
from shoal.ledger import entries, facts

IDS = [type(document).__name__ for document in DOCUMENTS]
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)


def fields_of(document: Contract) -> dict[str, Any]:
    return json.loads(document.to_json())


def parse(document: Contract, fields: dict[str, Any]) -> Contract:
    return type(document).from_json(json.dumps(fields))


def refused_fields(document: Contract, fields: dict[str, Any]) -> set[str]:
    """Names of the top-level fields that parsing complains about."""
    with pytest.raises(ValidationError) as caught:
        parse(document, fields)
    return {str(error["loc"][0]) for error in caught.value.errors() if error["loc"]}


def test_there_is_a_sample_of_every_message() -> None:
    modules = [
        admin,
        evaluation,
        final_model,
        compute,
        entries,
        facts,
        islands,
        proof_profile,
        protocol,
        roster,
        run,
        run_parts,
        sft,
        steps,
        tasks,
        verdicts,
        weights,
    ]
    defined = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Contract) and value.__module__ == module.__name__
        if not issubclass(value, SpecModel) and not value.__name__.startswith("_") and "[" not in value.__name__
    }
    reached = {type(document) for document in DOCUMENTS} | {run.Addresses, weights.CheckpointFile}
    reached |= {type(document.fact) for document in DOCUMENTS if isinstance(document, entries.LedgerEntry)}
    assert defined <= reached, f"add to tests/samples.py: {sorted(kind.__name__ for kind in defined - reached)}"


@every_document
def test_a_document_survives_the_round_trip(document: Contract) -> None:
    again = type(document).from_json(document.to_json())
    assert again == document
    assert again.to_json() == document.to_json()
    assert canonical_bytes(again) == canonical_bytes(document)


@every_document
def test_an_unknown_key_is_refused_by_its_name(document: Contract) -> None:
    assert refused_fields(document, fields_of(document) | {"surprise": 1}) == {"surprise"}


@every_document
def test_a_missing_required_field_is_refused_by_its_name(document: Contract) -> None:
    for name, info in type(document).model_fields.items():
        if info.is_required():
            key = "kind" if name == "fact" else info.alias or name  # a signed ledger entry is flat
            fields = fields_of(document)
            del fields[key]
            assert refused_fields(document, fields) == {key}


@every_document
def test_a_field_of_another_type_is_refused_by_its_name(document: Contract) -> None:
    for name in fields_of(document):
        for wrong in ({"no": {"such": "thing"}}, [[["deep"]]], object):
            fields = fields_of(document)
            fields[name] = {"a": {"b": [1]}} if wrong is object else wrong
            if name in (
                "verification_info",
                "metadata",
                "template_arguments",
                "templateArguments",
            ):  # free-form objects
                fields[name] = "no object"
            assert refused_fields(document, fields) == {name}


@every_document
def test_a_document_does_not_change_after_it_was_made(document: Contract) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(document, next(iter(type(document).model_fields)), 1)


STRICT_TEXT = {
    "node": ["", NODE.upper(), NODE[:-1], NODE + "0", NODE[:-1] + "g", NODE + "\n", " " + NODE],
    "sha256": ["", "0" * 63, "0" * 65, "G" * 64, "0" * 64 + "\n"],
    "beacon": ["", "0" * 63, "0" * 64 + "\n"],
    "lease": ["", "0" * 31, "0" * 33, "AB" * 16, "0" * 32 + "\n"],
    "claim": ["", "0" * 31],
    "run": ["", "-a", "a-", "A", "a_b", "a.b", "../a", "a" * 41, "a\n", "é"],
    "pool": ["", "Workers", "a" * 41],
    "orchestrator_url": [
        "",
        "ftp://a",
        "http://",
        "http://a b",
        "http://a?x=1",
        "http://u:p@h",
        "javascript:x",
        "http://a\n",
    ],
    "discovery": ["file:///etc/passwd", "http://a/#x"],
    "file": ["", "../x", "a/b", ".hidden", "a" * 129, "x\n", "-rf"],
    "software_version": ["\x1b[31m", "a\nb", "é", "x" * 201],
    "validator": ["\x00", "\x7f"],
    "state": ["", "healthy", "Gone"],
    "status": ["", "Accepted"],
    "outcome": ["", "maybe"],
    "kind": ["", "credited"],
}


@every_document
def test_text_that_does_not_fit_its_pattern_is_refused_by_the_fields_name(document: Contract) -> None:
    for name in fields_of(document).keys() & STRICT_TEXT.keys():
        for wrong in STRICT_TEXT[name]:
            if isinstance(document, tasks.Task | roster.Roster):
                continue
            assert name in refused_fields(document, fields_of(document) | {name: wrong}), wrong


NUMBERS = {
    "step": -1, "submission": -1, "version": -1, "policy_version": -1, "latest_version": 1_000_000, "min_version": -1,
    "max_version": 1_000_000, "size": -1, "groups": -1, "cpus": 0, "memory_bytes": -1, "gpus": 1025, "needed_groups": -1,
    "accepted_groups": -1, "pending_groups": -1, "expires_unix": float("nan"), "total_size": -1, "shard_size": 0,
    "shard_count": 0, "index": -1, "rows": -1, "completion_tokens": 0.5, "number": -1, "steps": -1, "async_level": 5,
    "task_count": 0.5, "base_pass_rate": 1.5, "seed": -1, "groups_dropped": -1, "loss": float("nan"),
    "reward": math.inf, "gradient_norm": -math.inf,
}  # fmt: skip


@every_document
def test_a_number_out_of_range_is_refused_by_the_fields_name(document: Contract) -> None:
    for name in fields_of(document).keys() & NUMBERS.keys():
        fields = fields_of(document) | {name: NUMBERS[name]}
        assert refused_fields(document, fields) == {name}, f"{type(document).__name__}.{name} = {NUMBERS[name]}"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_json_are_refused_and_never_a_crash(data: bytes) -> None:
    for kind in (protocol.Heartbeat, protocol.SubmissionNotice, weights.VersionOpen):
        with pytest.raises(ValidationError):
            kind.from_json(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_workers_message_with_any_value_in_any_field_is_parsed_or_refused(data: st.DataObject) -> None:
    workers = [
        d
        for d in DOCUMENTS
        if type(d).__name__ in ("Heartbeat", "Registration", "UploadRequest", "SubmissionNotice", "LeaseRequest")
    ]
    document = data.draw(st.sampled_from(workers))
    fields = fields_of(document)
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(JSON)
    try:
        parsed = parse(document, fields)
    except ValidationError:
        return
    assert parse(parsed, fields_of(parsed)) == parsed


def test_a_heartbeat_carries_few_plain_metrics() -> None:
    def beat(metrics: dict[str, Any]) -> protocol.Heartbeat:
        return protocol.Heartbeat.from_json(json.dumps({"node": NODE, "metrics": metrics}))

    assert beat({"tokens_per_second": 1}).metrics == {"tokens_per_second": 1.0}
    for metrics in (
        {"Bad": 1},
        {"x{a=1}": 1},
        {"": 1},
        {"x\n": 1},
        {"a" * 81: 1},
        {"x": "NaN"},
        {"x": None},
        {f"m{i}": 1 for i in range(65)},
    ):
        with pytest.raises(ValidationError, match="metrics"):
            beat(metrics)
    with pytest.raises(ValidationError, match="metrics"):
        protocol.Heartbeat.from_json(f'{{"node": "{NODE}", "metrics": {{"x": 1e999}}}}')


def test_a_verdict_fits_its_outcome() -> None:
    accept = next(d for d in DOCUMENTS if isinstance(d, verdicts.Verdict) and d.outcome == "accept")
    reject = next(d for d in DOCUMENTS if isinstance(d, verdicts.Verdict) and d.outcome == "reject")
    cases = [
        (accept, {"reason": "format"}, "a reject names a reason, and nothing else does"),
        (reject, {"reason": None}, "a reject names a reason, and nothing else does"),
        (reject, {"reason": "because"}, "reason"),
        (accept, {"policy_version": None}, "an accept carries policy_version and one reward for every row"),
        (accept, {"rewards": []}, "an accept carries policy_version and one reward for every row"),
        (accept, {"rows": 2}, "an accept carries policy_version and one reward for every row"),
        (reject, {"rewards": fields_of(accept)["rewards"]}, "only an accept carries rewards"),
        (reject, {"evidence": "x" * 4001}, "evidence"),
    ]
    for document, change, expected in cases:
        with pytest.raises(ValidationError, match=expected):
            parse(document, fields_of(document) | change)


@pytest.mark.parametrize(
    ("name", "wrong"), [("task_reward", 1.5), ("task_reward", -0.1), ("length_penalty", -1.0), ("reward", 1.1)]
)
def test_a_reward_out_of_range_is_refused(name: str, wrong: float) -> None:
    fields = {"task_reward": 1.0, "length_penalty": 0.0, "reward": 1.0} | {name: wrong}
    with pytest.raises(ValidationError, match=name):
        verdicts.RowReward.from_json(json.dumps(fields))


def test_a_manifests_part_is_written_in_camel_case_and_read_in_either() -> None:
    recipe_fields = fields_of(recipe.Recipe())
    assert "promptsPerStep" in recipe_fields
    assert recipe.Recipe.from_json('{"prompts_per_step": 3}') == recipe.Recipe.from_json('{"promptsPerStep": 3}')
    with pytest.raises(ValidationError, match="promptPerStep"):
        recipe.Recipe.from_json('{"promptPerStep": 3}')
    assert issubclass(recipe.Recipe, SpecModel)


def test_a_run_without_parts_of_leases_is_written_as_before_there_were_any() -> None:
    assert "rollouts" not in json.loads(run_config().to_json())
    assert "rollouts" in json.loads(run_config(rollouts={"hand_in_every_seconds": 60}).to_json())


def test_the_configuration_of_a_run_holds_no_key_but_public_ones() -> None:
    text = run_config().model_dump_json()
    assert "PRIVATE" not in text
    assert "secret" not in text.replace("credentialsSecret", "")


def test_the_defaults_of_the_recipe_are_those_of_the_paper() -> None:
    defaults = recipe.Recipe()
    assert (defaults.prompts_per_step, defaults.group_size, defaults.optimizer_steps) == (256, 16, 8)
    assert (defaults.learning_rate, defaults.warmup_steps, defaults.adam_beta1, defaults.adam_beta2) == (
        3e-7,
        25,
        0.9,
        0.99,
    )
    assert (defaults.loss.clip_epsilon, defaults.loss.upper_bound, defaults.max_grad_norm) == (0.2, 4.0, 0.1)
    assert (defaults.kl_coefficient, defaults.entropy_coefficient) == (0.001, 1e-4)
    assert defaults.max_sequence_length == 32_768
    assert completions.LengthReward().targets == [2000, 4000, 6000, 8000, 10000]
    assert completions.LengthReward().alpha == 0.0003


def test_processes_say_what_is_missing_from_their_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("SHOAL_BIND", raising=False)
    with pytest.raises(SystemExit, match="SHOAL_BIND is not set: give the address to listen on"):
        run.bind_address()
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"config/run\.json"):
        run.load_run_config()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "run.json").write_bytes(run_config().to_json())
    assert run.load_run_config() == run_config()
    assert run.load_run_config().trusted_roster().role_of(NODE) is None
