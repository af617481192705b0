"""Which relay to ask next: probability proportional to success rate x bandwidth, both moving averages (paper section 2.2; DESIGN section 5).

Pure: the state goes in and a new state comes out; time and randomness are the caller's. A failure lowers the success rate of its relay and touches
nothing else, so it never raises a weight. The success rate of a relay drifts back towards 1 while
nobody asks it; a floor keeps every relay in the draw, so that one that recovered is found again. Called by `transfer`.
"""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

SUCCESS_SMOOTHING = 0.3
"""Share of the newest outcome in the success rate: three failures in a row leave a third of the weight."""
BANDWIDTH_SMOOTHING = 0.3
HEALING_SECONDS = 60.0
"""In this time a success rate goes 63 % of its way back to 1: a restarted relay takes about that long to be useful again."""
FLOOR = 0.02
"""Least weight of a relay, as a share of the best one's: one draw in fifty looks whether it recovered."""
SLOWEST_BYTES_PER_SECOND = 1.0  # keeps a weight above zero


@dataclass(frozen=True)
class RelayRecord:
    """The record of one relay: success rate 0..1 at `updated` (seconds, the caller's clock), bandwidth in bytes/s, None if never measured."""

    success: float = 1.0
    bandwidth: float | None = None
    updated: float = 0.0


Records = Mapping[str, RelayRecord]


def follow(records: Records, relays: Sequence[str], now: float) -> dict[str, RelayRecord]:
    """The records for the present list of relays: known ones keep theirs, new ones start with full trust, others are forgotten."""
    return {relay: records.get(relay, RelayRecord(updated=now)) for relay in relays}


def succeeded(records: Records, relay: str, bytes_per_second: float, now: float) -> dict[str, RelayRecord]:
    """After a shard came from `relay`, whole and right."""
    old = _healed(records[relay], now)
    measured = max(bytes_per_second, SLOWEST_BYTES_PER_SECOND)
    bandwidth = measured if old.bandwidth is None else _mixed(old.bandwidth, measured, BANDWIDTH_SMOOTHING)
    new = replace(old, success=_mixed(old.success, 1.0, SUCCESS_SMOOTHING), bandwidth=bandwidth)
    return {**records, relay: new}


def failed(records: Records, relay: str, now: float) -> dict[str, RelayRecord]:
    """After `relay` broke off, answered wrongly, or sent bytes that were not the shard's."""
    old = _healed(records[relay], now)
    return {**records, relay: replace(old, success=_mixed(old.success, 0.0, SUCCESS_SMOOTHING))}


def slow(records: Records, relay: str, bytes_per_second: float, now: float) -> dict[str, RelayRecord]:
    """After a shard was taken from `relay` because others are faster: no failure, but it may not count for more than it gave."""
    old = _healed(records[relay], now)
    measured = max(bytes_per_second, SLOWEST_BYTES_PER_SECOND)
    if old.bandwidth is not None and old.bandwidth < measured:
        return {**records, relay: old}
    bandwidth = measured if old.bandwidth is None else _mixed(old.bandwidth, measured, BANDWIDTH_SMOOTHING)
    return {**records, relay: replace(old, bandwidth=bandwidth)}


def weights(records: Records, now: float) -> dict[str, float]:
    """Weight of every relay, above 0. An unmeasured one counts as fast as the fastest, so that it is soon measured."""
    measured = [record.bandwidth for record in records.values() if record.bandwidth is not None]
    presumed = max(measured, default=SLOWEST_BYTES_PER_SECOND)
    raw = {
        relay: _healed(record, now).success * (presumed if record.bandwidth is None else record.bandwidth)
        for relay, record in records.items()
    }
    floor = FLOOR * max(raw.values(), default=0.0)
    return {relay: max(weight, floor, math.ulp(0.0)) for relay, weight in raw.items()}


def pick(records: Records, now: float, rng: random.Random, without: Collection[str] = ()) -> str | None:
    """Draw a relay that is not in `without`; None when there is none."""
    candidates = {relay: weight for relay, weight in weights(records, now).items() if relay not in without}
    if not candidates:
        return None
    return rng.choices(list(candidates), weights=list(candidates.values()))[0]


def _healed(record: RelayRecord, now: float) -> RelayRecord:
    elapsed = max(0.0, now - record.updated)
    success = 1.0 - (1.0 - record.success) * math.exp(-elapsed / HEALING_SECONDS)
    return replace(record, success=success, updated=max(now, record.updated))


def _mixed(old: float, new: float, share: float) -> float:
    return (1.0 - share) * old + share * new
