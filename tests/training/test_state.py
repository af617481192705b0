"""State: what comes back is what was saved, to the bit; what is damaged or half written is never taken for whole. Earlier releases' are read."""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_upload_ranks import COLLECTIVE_SECONDS, PART, PARTS
from structlog.testing import capture_logs
from tiny_run import make_model, make_store, ranks, recipe
from torch import Tensor

from forked_python import TRAINER, run_python
from proxies import AilingProxy, Slow
from samples import METRICS, RUN
from servers import Loopback, Minio
from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.muon import MuonSettings
from shoal.contracts.storage import S3Storage
from shoal.contracts.trainer import Lora
from shoal.storage import Store
from shoal.storage.store import open_s3
from shoal.training.host_copy import HostCopy
from shoal.training.lora import add_adapters, draw_adapters
from shoal.training.model import Policy
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks
from shoal.training.stability import History
from shoal.training.state import BadState, SealedState, States, WrongState

FILES = ["rank-00000.tensors", "rank-00000.json"]
LIVENESS = telemetry.Liveness(60.0)


class Trained:
    """A policy with its optimizer and host copy."""

    def __init__(
        self, seed: int = 0, lora: bool = False, muon: MuonSettings | None = None, on_host: bool = False, **changes: Any
    ) -> None:
        model = make_model(seed, **changes)
        if lora:
            add_adapters(model, Lora(rank=2, target_modules=["q_proj"]))
            draw_adapters(model)
        self.policy = Policy(model, ranks())
        self.optimizer = Optimizer(
            self.policy.parameters(), recipe(muon=muon), matrices=self.policy.hidden_matrices, on_host=on_host
        )
        self.copy = HostCopy(self.policy, self.optimizer, ranks())

    def update(self, times: int) -> dict[str, Tensor]:
        """Weights after updates with random gradients: model, moments and random state all matter to the result."""
        for _ in range(times):
            for parameter in self.policy.parameters():
                parameter.grad = torch.randn_like(parameter)
            self.optimizer.step()
        return {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}

    def save(self, states: States, version: int, metrics: Any = None) -> None:
        self.copy.take()
        states.save(version, self.copy.tensors, self.optimizer.updates, metrics, History(entropy_minimum=0.5))

    def restore(self, states: States, version: int) -> SealedState:
        sealed = states.restore(version, self.copy, LIVENESS)
        self.optimizer.updates = sealed.updates
        return sealed


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


@pytest.fixture
def states(store: Store, tmp_path: Path) -> States:
    return States(store, RUN, ranks())


def spoil(store: Store, version: int, name: str) -> None:
    data = bytearray(store.get(keys.trainer_state(version) + name))
    data[len(data) // 2] ^= 1
    store.put(keys.trainer_state(version) + name, bytes(data))


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(states: States, lora: bool) -> None:
    first = Trained(lora=lora)
    first.update(3)
    first.save(states, 3, METRICS)
    went_on = first.update(2)

    torch.manual_seed(99)
    other = Trained(seed=0 if lora else 5, lora=lora)  # frozen weights are the base model's, and not in the state
    sealed = other.restore(states, 3)
    assert sealed.metrics == METRICS
    assert sealed.history.entropy_minimum == 0.5
    assert other.optimizer.updates == 3
    resumed = other.update(2)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in went_on.items())


@pytest.mark.parametrize("on_host", [False, True])
def test_a_run_with_muon_goes_on_bit_for_bit_with_one_moment_for_each_matrix(
    states: States, store: Store, on_host: bool
) -> None:
    first = Trained(muon=MuonSettings())
    first.update(3)
    first.save(states, 3)
    went_on = first.update(2)
    torch.manual_seed(99)
    other = Trained(seed=5, muon=MuonSettings(), on_host=on_host)
    other.restore(states, 3)
    resumed = other.update(2)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in went_on.items())
    kept = {key.partition("/")[0] for key in first.copy.tensors if key.endswith("q_proj.weight")}
    assert kept == {"weights", "momentum_buffer"}
    plain = Trained()
    plain.update(1)
    plain.save(states, 4)
    assert (store.size(keys.trainer_state(3) + FILES[0]) or 0) < (store.size(keys.trainer_state(4) + FILES[0]) or 0)


@pytest.mark.parametrize("written_by_muon", [False, True])
def test_a_state_of_another_optimizer_is_refused(states: States, written_by_muon: bool) -> None:
    first, other = (Trained(muon=MuonSettings() if one else None) for one in (written_by_muon, not written_by_muon))
    first.update(1)
    first.save(states, 1)
    with pytest.raises(WrongState, match=r"v000001/ is of another optimizer than recipe\.muon or sft\.muon says"):
        other.restore(states, 1)


def test_what_is_saved_is_what_was_copied_however_the_policy_goes_on(states: States) -> None:
    first = Trained()
    before = first.update(1)
    first.copy.take()
    first.update(3)
    states.save(1, first.copy.tensors, 1, None, History())
    first.restore(states, 1)
    assert all(torch.equal(first.policy.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_state_holds_what_is_trained_only(states: States, store: Store) -> None:
    adapters, whole = Trained(lora=True), Trained()
    adapters.save(states, 1)
    whole.save(states, 2)
    first, second = (store.size(keys.trainer_state(version) + FILES[0]) for version in (1, 2))
    assert first is not None
    assert second is not None
    assert first < second / 3


def test_tied_embeddings_stay_tied(states: States) -> None:
    first = Trained(tie_word_embeddings=True)
    first.update(1)
    first.save(states, 1)
    fresh = Trained(seed=5, tie_word_embeddings=True)
    fresh.restore(states, 1)
    model = fresh.policy.model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, first.policy.model.lm_head.weight)


def test_a_state_without_its_seal_does_not_exist(states: States, store: Store) -> None:
    first = Trained()
    first.save(states, 1)
    first.save(states, 2)
    store.delete(keys.trainer_state(2) + "state.json")
    assert states.sealed() == [1]
    sealed = states.restore_newest(first.copy, LIVENESS)
    assert sealed is not None
    assert sealed.version == 1
    assert not store.list(keys.trainer_state(2))


def test_a_deleted_state_leaves_nothing(states: States, store: Store) -> None:
    first = Trained()
    first.save(states, 1)
    states.delete(1)
    assert not store.list(keys.trainer_state(1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (FILES[0], r"v000001/rank-00000.tensors: bytes 0 to \d+ do not have the SHA-256 that rank-00000.json has"),
        (FILES[1], r"v000001/rank-00000.json has SHA-256 .*, but the seal has"),
    ],
)
def test_a_damaged_file_is_refused_and_the_weights_stay(states: States, store: Store, name: str, message: str) -> None:
    first = Trained()
    first.save(states, 1)
    now = first.update(1)
    first.copy.take()
    spoil(store, 1, name)
    with pytest.raises(BadState, match=message) as caught:
        first.restore(states, 1)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(first.policy.state_dict()[key], tensor) for key, tensor in now.items())
    assert all(torch.equal(first.copy.tensors[f"weights/{key}"], tensor) for key, tensor in now.items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (FILES[0], r"rank-00000.json describes rank-00000.tensors, but there is no such object"),
        (FILES[1], r"the seal of trainer/state/v000001/ has rank-00000.json, but there is no such object"),
    ],
)
def test_a_missing_file_is_refused(states: States, store: Store, name: str, message: str) -> None:
    first = Trained()
    first.save(states, 1)
    store.delete(keys.trainer_state(1) + name)
    with pytest.raises(BadState, match=message):
        first.restore(states, 1)


def test_a_file_that_is_cut_short_is_refused_before_anything_is_read(states: States, store: Store) -> None:
    first = Trained()
    first.save(states, 1)
    key = keys.trainer_state(1) + FILES[0]
    size = store.size(key)
    store.put(key, store.get(key)[:-1000])
    with pytest.raises(BadState, match=rf"rank-00000.tensors has {size - 1000} bytes, but rank-00000.json says {size}"):
        first.restore(states, 1)


def test_a_state_that_is_not_there_is_refused_with_those_that_are(states: States) -> None:
    first = Trained()
    first.save(states, 4)
    with pytest.raises(BadState, match=r"there is no trainer/state/v000001/state.json; sealed states: \[4\]"):
        first.restore(states, 1)


def test_a_damaged_newest_state_gives_way_to_the_one_before_and_says_so(states: States, store: Store) -> None:
    first = Trained()
    before = first.update(1)
    first.save(states, 1)
    first.update(1)
    first.save(states, 2)
    spoil(store, 2, FILES[0])
    fresh = Trained(seed=5)
    with capture_logs() as logs:
        sealed = states.restore_newest(fresh.copy, LIVENESS)
    assert sealed is not None
    assert sealed.version == 1
    assert all(torch.equal(fresh.policy.state_dict()[name], tensor) for name, tensor in before.items())
    assert [log["event"] for log in logs] == ["a state is damaged; trying the previous one"]
    assert states.sealed() == [1]  # half overwritten by a later attempt, it must not look whole


class OneRankOfTwo(Ranks):
    """The ranks of a process whose peer says that something is wrong."""

    def any(self, flag: bool, what: str) -> bool:
        return True


def test_a_seal_that_another_rank_cannot_read_counts_as_damaged_here_too(
    states: States, store: Store, tmp_path: Path
) -> None:
    one = Trained()
    one.save(states, 1)
    agreed = States(store, RUN, OneRankOfTwo(**vars(ranks())))
    with pytest.raises(BadState, match=r"v000001/state.json could not be read on another rank; its log says why"):
        one.restore(agreed, 1)


@pytest.mark.parametrize("name", ["../rank-00000.json", "rank-00000.json#1", "rank/00000"])
def test_a_seal_with_a_name_that_no_file_can_have_counts_as_damaged(states: States, store: Store, name: str) -> None:
    first = Trained()
    first.save(states, 1)
    key = keys.trainer_state(1) + "state.json"
    store.put(key, store.get(key).replace(b"rank-00000.json", name.encode()))
    with pytest.raises(BadState, match=r"v000001/state.json: "):
        first.restore(states, 1)


def test_with_no_intact_state_nothing_is_touched_and_the_way_out_is_said(states: States, store: Store) -> None:
    first = Trained()
    first.save(states, 1)
    spoil(store, 1, FILES[0])
    with pytest.raises(
        BadState, match=r"none of the states \[1\] is intact.*delete that folder to continue from the newest published"
    ):
        states.restore_newest(first.copy, LIVENESS)
    assert states.sealed() == [1]


def test_with_no_state_at_all_there_is_nothing_to_restore(states: States) -> None:
    assert states.restore_newest(Trained().copy, LIVENESS) is None


def test_the_state_of_another_run_is_refused(states: States, store: Store, tmp_path: Path) -> None:
    first = Trained()
    first.save(states, 1)
    with pytest.raises(WrongState, match="is of run 'arithmetic' version 1; expected: 'other'"):
        States(store, "other", ranks()).restore_newest(first.copy, LIVENESS)


@pytest.mark.parametrize("other", [{"intermediate_size": 96}, {"lora": True}, {"num_hidden_layers": 1}])
def test_the_state_of_another_model_is_refused_and_not_passed_over(states: States, other: dict[str, Any]) -> None:
    Trained().save(states, 1)
    with pytest.raises(
        WrongState, match=r"is of another model than models/base/, trainer.lora and recipe.algorithm say"
    ):
        states.restore_newest(Trained(**other).copy, LIVENESS)
    assert states.sealed() == [1]


def test_weights_alone_are_read_beside_those_that_are_trained(states: States) -> None:
    first = Trained()
    before = first.update(1)
    first.save(states, 1)
    now = first.update(1)
    weights = states.read_weights(1, first.copy, LIVENESS)
    assert all(torch.equal(weights[f"weights/{name}"], tensor) for name, tensor in before.items())
    assert all(torch.equal(first.policy.state_dict()[name], tensor) for name, tensor in now.items())


def test_a_seal_that_names_a_pickle_is_passed_over_and_the_pickle_is_never_opened(
    states: States, store: Store, tmp_path: Path
) -> None:
    """Release 0.1 had such states. Whoever may write the store can make one, with digests that are right."""
    first = Trained()
    before = first.update(1)
    first.save(states, 1)
    ran = tmp_path / "ran"
    pickle = b"cos\nsystem\n(S'touch %s'\ntR." % str(ran).encode()
    newest = keys.trainer_state(999999)
    store.put(newest + "metadata", pickle)
    forged = SealedState(
        run=RUN,
        version=999999,
        updates=1,
        ranks=1,
        metrics=None,
        files={"metadata": hashlib.sha256(pickle).hexdigest()},
    )
    store.put(newest + "state.json", forged.to_json())
    with pytest.raises(BadState, match=r"v999999/ is of release 0\.1, .*: this release opens none"):
        first.restore(states, 999999)
    found = states.restore_newest(first.copy, LIVENESS)
    assert found is not None
    assert found.version == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.policy.state_dict().items())
    assert not ran.exists()
    assert states.sealed() == [1]


class Lines:
    """A bucket, and each of two ranks' own line to it."""

    def __init__(self, folder: Path, minio: Minio, loopback: Loopback) -> None:
        self.folder = folder
        self.proxies = [AilingProxy((loopback.address(), 0), (minio.address, minio.port)) for _ in range(2)]
        self._spec = S3Storage(endpoint=minio.endpoint, bucket=minio.bucket, credentials_secret="store")
        self._keys = (minio.access_key, minio.secret_key)
        self.store = open_s3(self._spec, RUN, *self._keys)
        self.states = States(self.store, RUN, ranks())

    def save(self, version: int) -> list[str]:
        """The two ranks save a state; what each has to say of an error."""
        here = Path(__file__).parent
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path])}
        command = [str(here / "slow_upload_ranks.py"), str(self.folder), str(version)]
        command += [self._spec.to_json().decode(), *self._keys, *(proxy.url for proxy in self.proxies)]
        environment["no_proxy"] = ",".join(proxy.host for proxy in self.proxies)
        done = run_python(command, TRAINER, env=environment, timeout=450)
        assert done.returncode == 0, done.stderr[-2000:]
        return [(self.folder / f"rank-{rank}").read_text() for rank in range(2)]


@pytest.fixture
def lines(tmp_path: Path, minio_server: Minio, loopback: Loopback) -> Iterator[Lines]:
    made = Lines(tmp_path, minio_server, loopback)
    yield made
    for proxy in made.proxies:
        proxy.close()
    for info in made.store.list("trainer/"):
        made.store.delete(info.key)


def test_a_rank_whose_upload_takes_longer_than_a_collective_may_is_waited_for(lines: Lines) -> None:
    slow = Slow(2.0, 1 << 20)
    lines.proxies[1].slow = slow
    assert lines.save(1) == ["", ""]
    assert lines.proxies[1].slowed * slow.first_byte_seconds > COLLECTIVE_SECONDS
    assert lines.states.sealed() == [1]
    sealed = SealedState.from_json(lines.store.get(keys.trainer_state(1) + "state.json"))
    assert sealed.files.keys() == {"rank-00000.json", "rank-00001.json"}
    for rank in range(2):
        part = lines.store.get(keys.trainer_state(1) + f"rank-0000{rank}.tensors")
        assert part == bytes([rank]) * len(part)
        assert len(part) == PARTS * PART


def test_where_one_rank_cannot_upload_all_say_so_and_the_state_of_before_is_taken_up(lines: Lines) -> None:
    first = Trained()
    kept = first.update(1)
    first.save(lines.states, 1)
    first.update(1)
    first.save(lines.states, 2)  # of an earlier attempt; the ranks save it again
    lines.proxies[1].refuse_at("v000002/rank-00001.tensors?partNumber=3")
    healthy, failed = lines.save(2)
    what = r"every rank's part of state 2 to be uploaded"
    assert healthy == f"PeerLost: rank 0 waited for {what}, which failed on another rank; its log says why"
    assert re.match(
        r"StoreUnavailable: cannot write trainer/state/v000002/rank-00001\.tensors: the s3 store did not answer for \d+ s",
        failed,
    )
    assert lines.store.size(keys.trainer_state(2) + "rank-00000.tensors") == PARTS * PART
    assert lines.states.sealed() == [1]
    other = Trained(seed=5)
    with pytest.raises(BadState, match=r"there is no trainer/state/v000002/state\.json; sealed states: \[1\]"):
        other.restore(lines.states, 2)
    taken = lines.states.restore_newest(other.copy, LIVENESS)
    assert taken is not None
    assert taken.version == 1
    assert all(torch.equal(tensor, kept[name]) for name, tensor in other.policy.state_dict().items())
    assert lines.store.list(keys.trainer_state(2)) == []
