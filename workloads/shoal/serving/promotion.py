"""Moves a tag of a run to another version: chooses the version, checks all its bytes, then writes the move, on the condition that nobody else moved.

In: an opened run and what a person asks. Out: a `Promotion` in the store, or an error that says what to do. Called by `shoal serving`.
A promotion reads the version once, with all that it is a delta to: 80 GB at 32B with eight deltas. It writes some hundred bytes.
The trainer deletes no version that a tag can go back to. It may have begun to delete one that is promoted in this moment: so the pieces are listed
again after the move, and a move to a version that lost one is taken back.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.final_model import FinalModel
from shoal.contracts.serving import MOST_MOVES, PromotedScore, Promotion
from shoal.contracts.signed import BadSignature
from shoal.errors import InputWrong, RunFailed
from shoal.evaluation.versions import VersionEvaluation, best_version
from shoal.report.access import RunAccess
from shoal.report.facts import read_evaluations
from shoal.storage import NotFound, StoreUnavailable
from shoal.storage.chains import BrokenDeltas
from shoal.storage.checkpoint_files import WrongWeights
from shoal.storage.parallel import in_parallel
from shoal.storage.promotions import BadPromotion, move_tag, reachable, read_moves
from shoal.storage.versions import (
    check_pieces,
    missing,
    pieces_of,
    read_sealed_manifest,
    sealed_versions,
    versions_with_shards,
)
from shoal.text import plain

SHOWN = 12
"""Numbers of versions that an error names."""


@dataclass(frozen=True)
class TagWish:
    """Who moves a tag and why; `keep`: how many versions a roll back can then reach, None: all."""

    tag: str
    by: str
    reason: str
    unix: float
    keep: int | None = None


@dataclass(frozen=True)
class TagState:
    """A tag as it stands: its moves and what a roll back can go to, oldest first, and why the store cannot give what it names (empty: it can)."""

    tag: str
    moves: list[Promotion]
    reachable: list[Promotion]
    lost: str

    @property
    def named(self) -> Promotion:
        """What the tag names now."""
        return self.moves[-1]


def best_by_evaluation(access: RunAccess, benchmark: str | None) -> int:
    """The version that scored best on a benchmark, of those that are there whole; None: on the benchmark that decides in this run.

    Raises `InputWrong` where no version was fully scored.
    """
    with guarded(access):
        if benchmark is None:
            try:
                return BestVersion.from_json(access.store.get(keys.BEST_VERSION)).version
            except NotFound:
                raise InputWrong(_not_evaluated(access, None, read_evaluations(access.store))) from None
        records = read_evaluations(access.store)
        there = set(versions_with_shards(access.store))
        found = {
            each.version: each.short.avg_at_k
            for each in records
            if each.benchmark.name == benchmark and each.complete and each.version in there
        }
        best = best_version({version: value for version, value in found.items() if value is not None}, benchmark)
    if best is None:
        raise InputWrong(_not_evaluated(access, benchmark, records))
    return best.version


def promote(access: RunAccess, version: int, how: str, wish: TagWish, say: Callable[[str], None]) -> Promotion:
    """Let the tag name this version. Where it does already, the move that did so is returned and nothing is written.

    Raises `InputWrong` for a version that is not there, `RunFailed` for bytes that are not what was signed, and where somebody else moved the tag.
    """
    with guarded(access):
        moves = read_moves(access.store, wish.tag)
        digest = check_version(access, version, say)
        if moves and (moves[-1].version, moves[-1].sha256) == (version, digest):
            return moves[-1]
        return _move(access, moves, _made(access, moves, version, digest, how, wish))


def roll_back(access: RunAccess, to: int | None, wish: TagWish, say: Callable[[str], None]) -> Promotion:
    """Let the tag name the version before the one that it names, or `to` of those before. Raises as `promote` does."""
    with guarded(access):
        moves = read_moves(access.store, wish.tag)
        if not moves:
            raise InputWrong(_no_tag(access, wish.tag))
        before = reachable(moves)[:-1]
        wanted = [move for move in before if to is None or move.version == to]
        if not wanted:
            known = _numbers(move.version for move in before)
            raise InputWrong(
                f"tag {wish.tag} cannot go back to version {to}: before version {moves[-1].version} it named {known}"
                if to is not None and before
                else f"tag {wish.tag} named no version before version {moves[-1].version}, so there is nothing to go back to"
            )
        digest = check_version(access, wanted[-1].version, say)
        if digest != wanted[-1].sha256:
            raise RunFailed(
                f"version {wanted[-1].version} has digest {digest[:12]}..., but tag {wish.tag} named {wanted[-1].sha256[:12]}... by this number"
            )
        return _move(access, moves, _made(access, moves, wanted[-1].version, digest, "back", wish))


def state_of(access: RunAccess, tag: str) -> TagState:
    """Read a tag. Raises `InputWrong` where nobody made it. Costs small reads and listings, no weights."""
    with guarded(access):
        moves = read_moves(access.store, tag)
        if not moves:
            raise InputWrong(_no_tag(access, tag))
        return TagState(tag, moves, reachable(moves), _lost(access, moves[-1]))


def check_version(access: RunAccess, version: int, say: Callable[[str], None] = lambda line: None) -> str:
    """Read all of a version and return its digest. Raises `InputWrong` for one that is not there, `WrongWeights` or `BadSignature` for bad bytes."""
    store = access.store
    versions = sealed_versions(store)
    if not versions:
        digest, seal = _final(access, version)
        say(f"checking models/final/: {len(seal.files)} files")

        def check(name: str) -> None:
            if store.sha256(keys.FINAL_MODEL + name)[0] != seal.files[name]:
                raise WrongWeights(f"{keys.FINAL_MODEL}{name} does not have the SHA-256 of its seal")

        in_parallel(check, seal.files)
        return digest
    if version not in versions:
        raise InputWrong(f"run {access.run} has no version {version}; it has {_numbers(versions)}")
    trainer = access.trainer
    pieces = pieces_of(store, version, access.run, trainer)
    if missing(store, pieces):
        raise InputWrong(
            f"the weights of version {version} are no longer in the store; those of {_numbers(versions_with_shards(access.store))} are"
        )
    say(f"checking version {version}: {len(pieces)} shards")
    check_pieces(store, pieces, access.run, trainer)
    return _sealed_digest(access, version)


def _sealed_digest(access: RunAccess, version: int) -> str:
    return read_sealed_manifest(access.store, version, access.trainer).sha256


def _final(access: RunAccess, version: int) -> tuple[str, FinalModel]:
    """Digest and content of the seal of a run that publishes no versions."""
    try:
        data = access.store.get(keys.FINAL_SEAL)
        seal = FinalModel.from_json(data)
    except NotFound:
        raise InputWrong(f"run {access.run} has made no version yet") from None
    except ValidationError as error:
        raise WrongWeights(f"{keys.FINAL_SEAL} cannot be read: {error.error_count()} mistakes") from None
    if seal.version != version:
        raise InputWrong(f"run {access.run} has no version {version}; its result is version {seal.version}")
    return hashlib.sha256(data).hexdigest(), seal


def _lost(access: RunAccess, move: Promotion) -> str:
    """Why the store cannot give what a move names; empty where it can, as far as listings tell."""
    store = access.store
    try:
        if not sealed_versions(store):
            digest, seal = _final(access, move.version)
            there = {info.key for info in store.list(keys.FINAL_MODEL)}
            gone = [name for name in seal.files if keys.FINAL_MODEL + name not in there]
        else:
            digest = _sealed_digest(access, move.version)
            gone = missing(store, pieces_of(store, move.version, access.run, access.trainer))
    except NotFound as error:
        return str(error)
    except (InputWrong, WrongWeights, BadSignature, ValidationError) as error:
        return plain(error, 300)
    if digest != move.sha256:
        return f"the store's version {move.version} has digest {digest[:12]}..., not {move.sha256[:12]}..."
    return f"{len(gone)} of its objects are gone, first {gone[0]}" if gone else ""


def _made(
    access: RunAccess, moves: Sequence[Promotion], version: int, digest: str, how: str, wish: TagWish
) -> Promotion:
    number = moves[-1].number + 1 if moves else 0
    if number > MOST_MOVES:
        raise InputWrong(f"tag {wish.tag} was moved {number} times, more than it can be: use another tag")
    scores = [
        PromotedScore(benchmark=each.benchmark.name, avg_at_k=found.value, low=found.low, high=found.high)
        for each in read_evaluations(access.store)
        if each.version == version and each.complete and each.scores is not None
        for found in [each.scores.avg_at_k]
        if found is not None
    ]
    try:
        return Promotion.model_validate(
            {
                "run": access.run, "tag": wish.tag, "number": number, "version": version, "sha256": digest, "how": how,
                "by": wish.by, "reason": wish.reason, "unix": wish.unix, "scores": scores, "keep": wish.keep,
            }
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        raise InputWrong(f"--{'.'.join(str(part) for part in first['loc'])}: {plain(first['msg'], 200)}") from None


def _move(access: RunAccess, moves: Sequence[Promotion], made: Promotion) -> Promotion:
    """Write the move, if nobody else wrote one since `moves` were read, and look once more whether the version is there."""
    if not move_tag(access.store, made):
        now = read_moves(access.store, made.tag)[-1]
        raise RunFailed(
            f"{plain(now.by, 80)} moved tag {made.tag} to version {now.version} at the same time ({plain(now.reason, 120)}):"
            " nothing was changed; look with `shoal serving show`, and run the command again if it is still right"
        )
    if lost := _lost(access, made):
        access.store.delete(keys.promotion(made.tag, made.number))
        stays = f"names version {moves[-1].version} as before" if moves else "names nothing"
        raise RunFailed(
            f"version {made.version} was deleted while it was promoted ({lost}); tag {made.tag} {stays}: choose a newer version"
        )
    return made


def _not_evaluated(access: RunAccess, benchmark: str | None, records: Sequence[VersionEvaluation]) -> str:
    scored = sorted({each.benchmark.name for each in records if each.complete})
    what = f" on {plain(benchmark, 60)}" if benchmark is not None else ""
    others = f"; it was scored on {', '.join(plain(name, 60) for name in scored)}" if scored else ""
    return (
        f"no version of run {access.run} was fully evaluated{what}{others}:"
        " give --version N, or score versions with spec.evaluation"
    )


def _no_tag(access: RunAccess, tag: str) -> str:
    return f"run {access.run} has no tag {tag}: make it with `shoal serving promote --tag {tag}`"


def _numbers(versions: Iterable[int]) -> str:
    found = sorted(set(versions))
    if not found:
        return "none"
    shown = found if len(found) <= SHOWN else [*found[: SHOWN // 2], *found[-SHOWN // 2 :]]
    words = [str(number) for number in shown]
    if len(found) > SHOWN:
        words.insert(SHOWN // 2, "...")
    return ("version " if len(found) == 1 else "versions ") + ", ".join(words)


@contextmanager
def guarded(access: RunAccess) -> Iterator[None]:
    """Turn what a store and its documents raise into errors of the command line."""
    try:
        yield
    except StoreUnavailable as error:
        raise RunFailed(f"the store of run {access.run} is away: {plain(error, 400)}") from None
    except (WrongWeights, BadSignature, NotFound, BadPromotion, BrokenDeltas, ValidationError) as error:
        raise RunFailed(f"the store of run {access.run} has something wrong: {plain(error, 400)}") from None
    except OSError as error:
        raise RunFailed(f"cannot write {plain(error.filename or 'a file', 200)}: {error.strerror}") from None
