"""What runs have used, also after they are deleted: data of the operator's ConfigMaps `megatron-ledger-N`.

A run's record is in the ConfigMap that its UID is hashed to, under `run.UID`, and is kept up to date while
the recipe exists. Once it is deleted, one update of the ConfigMap adds the record to the sums of its
namespace, `namespace.NAME`, and removes it: wherever the operator is interrupted, a run is counted once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from pydantic import Field, ValidationError

from megatron_operator.api.base import ApiModel
from megatron_operator.api.errors import OperatorError
from megatron_operator.lifecycle.ledger_weeks import MAX_WEEKS, TICKS
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.run_account import run_account
from megatron_operator.lifecycle.time_ledger import by_category

CONFIG_MAPS: Final = tuple(f"megatron-ledger-{digit}" for digit in "0123456789abcdef")
"""Names of the ConfigMaps: each has the records of a sixteenth of the runs."""
MAX_RECORD_BYTES: Final = 400 * 2**10
"""Bytes of the records of existing runs in one ConfigMap; it can have 1 MiB."""
MAX_SUM_BYTES: Final = 500 * 2**10
"""Bytes of the sums of namespaces in one ConfigMap. Where there are more, the oldest weeks are dropped: they
remain in the sums by category. Without weeks, the namespaces with the least usage are added up as OTHERS."""
MAX_ENDED_BYTES: Final = 100 * 2**10
"""Bytes of the final records that one write adds to a ConfigMap."""
OTHERS: Final = "_others"
"""Stands for several namespaces. No namespace can have this name."""
_HOUR: Final = 3600.0
_RUN: Final = "run."
_NAMESPACE: Final = "namespace."


class RecordError(OperatorError):
    """A ConfigMap has data that cannot be read."""


class WeekUse(NamedTuple):
    """Accelerator seconds of a week."""

    seconds: float
    lost: float
    """What of it was not training, saving or evaluation."""


class RunUse(ApiModel):
    """What one run has used since its creation."""

    namespace: str
    name: str
    price: float | None = None
    """Price of an accelerator and hour."""
    seconds: dict[str, float]
    """Wall time by category."""
    accelerator_seconds: dict[str, float]
    weeks: dict[str, WeekUse]
    """By the date of their Mondays, UTC."""


class WeekSum(NamedTuple):
    """Accelerator seconds of a namespace's deleted runs in a week."""

    runs: int = 0
    seconds: float = 0.0
    lost: float = 0.0
    cost: float | None = None
    unpriced: float = 0.0
    """Of runs without a price."""

    def plus(self, use: WeekUse, price: float | None) -> "WeekSum":
        """With a run that had this price."""
        cost, unpriced = _add_cost(self.cost, self.unpriced, use.seconds, price)
        seconds, lost = round(self.seconds + use.seconds, 2), round(self.lost + use.lost, 2)
        return WeekSum(self.runs + 1, seconds, lost, cost, unpriced)


class NamespaceUse(ApiModel):
    """What the deleted runs of a namespace have used."""

    runs: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)
    accelerator_seconds: dict[str, float] = Field(default_factory=dict)
    cost: float | None = None
    unpriced: float = 0.0
    """Accelerator seconds of runs without a price."""
    weeks: dict[str, WeekSum] = Field(default_factory=dict)

    def plus(self, run: RunUse) -> "NamespaceUse":
        """With a run."""
        held = sum(run.accelerator_seconds.values())
        cost, unpriced = _add_cost(self.cost, self.unpriced, held, run.price)
        weeks = dict(self.weeks)
        for week, use in run.weeks.items():
            weeks[week] = weeks.get(week, WeekSum()).plus(use, run.price)
        return NamespaceUse(
            runs=self.runs + 1,
            seconds=_added(self.seconds, run.seconds),
            accelerator_seconds=_added(self.accelerator_seconds, run.accelerator_seconds),
            cost=cost,
            unpriced=unpriced,
            weeks={week: weeks[week] for week in sorted(weeks)[-MAX_WEEKS:]},
        )


@dataclass(slots=True)
class Records:
    """What one ConfigMap has, or what several have together."""

    runs: dict[str, RunUse] = field(default_factory=dict)
    """By UID: runs whose recipes exist, or were deleted so recently that they are not in the sums yet."""
    namespaces: dict[str, NamespaceUse] = field(default_factory=dict)
    """Sums of deleted runs."""

    @classmethod
    def read(cls, data: Mapping[str, str] | None) -> "Records":
        """Those of a ConfigMap's data. Raises RecordError."""
        found = cls()
        for key, text in (data or {}).items():
            try:
                if key.startswith(_RUN):
                    found.runs[key.removeprefix(_RUN)] = RunUse.model_validate_json(text)
                elif key.startswith(_NAMESPACE):
                    found.namespaces[key.removeprefix(_NAMESPACE)] = NamespaceUse.model_validate_json(text)
            except ValidationError as error:
                raise RecordError(f"{key}: {error.errors()[0]['msg']}") from None
        return found

    def with_runs(self, uses: Mapping[str, RunUse]) -> "Records":
        """With what existing runs have used, by UID, as far as there is room; new ones last."""
        runs = {uid: use for uid, use in self.runs.items() if uid not in uses}
        room = MAX_RECORD_BYTES - sum(_record_bytes(uid, use) for uid, use in runs.items())
        for uid, use in sorted(uses.items(), key=lambda each: each[0] not in self.runs):
            if (room := room - _record_bytes(uid, use)) >= 0:
                runs[uid] = use
        return Records(runs, self.namespaces)

    def with_ended(self, uses: Mapping[str, RunUse]) -> "Records":
        """With the final records of deleted runs, by UID."""
        return Records(self.runs | dict(uses), self.namespaces)

    def without_runs(self, uids: Iterable[str]) -> "Records":
        """Without the records of these runs, which the sums have already."""
        dropped = frozenset(uids)
        runs = {uid: use for uid, use in self.runs.items() if uid not in dropped}
        return Records(runs, self.namespaces)

    def with_deleted(self, uids: Iterable[str]) -> "Records":
        """With the records of these runs in the sums of their namespaces instead."""
        runs, namespaces = dict(self.runs), dict(self.namespaces)
        for uid in uids:
            if (run := runs.pop(uid, None)) is not None:
                namespaces[run.namespace] = namespaces.get(run.namespace, NamespaceUse()).plus(run)
        return Records(runs, namespaces)

    def changes(self, after: "Records") -> dict[str, str | None]:
        """The merge patch of the ConfigMap's data from these records to those."""
        before, wanted = self._data(), after._data()
        changed = {key: text for key, text in wanted.items() if before.get(key) != text}
        return changed | dict.fromkeys(before.keys() - wanted.keys())

    def _data(self) -> dict[str, str]:
        limited = _within(self.namespaces, MAX_SUM_BYTES)
        return {_RUN + uid: _text(use) for uid, use in self.runs.items()} | {
            _NAMESPACE + name: _text(use) for name, use in limited.items()
        }


def run_use(recipe: Object, now: float) -> RunUse | None:
    """What a run has used up to now, seconds since the epoch; None where it has held no accelerators."""
    found = run_account(recipe, now, None)
    if found is None or not found.account.held:
        return None
    account, metadata = found.account, recipe["metadata"]
    weeks = sorted(account.weeks.items())[-MAX_WEEKS:]
    return RunUse(
        namespace=metadata["namespace"],
        name=metadata["name"],
        price=found.price,
        seconds=by_category(account.ticks),
        accelerator_seconds=by_category(account.accelerator_ticks),
        weeks={week: WeekUse(each.ticks / TICKS, each.lost / TICKS) for week, each in weeks},
    )


def config_map_of(uid: str) -> str:
    """Name of the ConfigMap with the record of this run."""
    return CONFIG_MAPS[crc32(uid.encode()) % len(CONFIG_MAPS)]


def batches(uses: Mapping[str, RunUse]) -> Iterator[dict[str, RunUse]]:
    """Final records, by UID, in parts of at most MAX_ENDED_BYTES."""
    part, size = dict[str, RunUse](), 0
    for uid, use in uses.items():
        more = _record_bytes(uid, use)
        if part and size + more > MAX_ENDED_BYTES:
            yield part
            part, size = {}, 0
        part[uid] = use
        size += more
    if part:
        yield part


def total(all_records: Iterable[Records], existing: Iterable[str]) -> dict[str, NamespaceUse]:
    """The use of deleted runs by namespace, of all ConfigMaps.

    `existing` are the UIDs of the recipes that exist, which must be listed after the ConfigMaps were read:
    records of other runs are those of deleted ones.
    """
    known, sums = frozenset(existing), dict[str, NamespaceUse]()
    for records in all_records:
        gone = records.with_deleted(records.runs.keys() - known)
        for name, use in gone.namespaces.items():
            sums[name] = _joined(sums[name], use) if name in sums else use
    return sums


def _joined(one: NamespaceUse, other: NamespaceUse) -> NamespaceUse:
    weeks = dict(one.weeks)
    for week, use in other.weeks.items():
        known = weeks.get(week, WeekSum())
        weeks[week] = WeekSum(
            known.runs + use.runs,
            round(known.seconds + use.seconds, 2),
            round(known.lost + use.lost, 2),
            _sum_of_costs(known.cost, use.cost),
            round(known.unpriced + use.unpriced, 2),
        )
    return NamespaceUse(
        runs=one.runs + other.runs,
        seconds=_added(one.seconds, other.seconds),
        accelerator_seconds=_added(one.accelerator_seconds, other.accelerator_seconds),
        cost=_sum_of_costs(one.cost, other.cost),
        unpriced=round(one.unpriced + other.unpriced, 2),
        weeks=weeks,
    )


def _record_bytes(uid: str, use: RunUse) -> int:
    return len(_RUN) + len(uid) + len(_text(use))


def _sum_bytes(name: str, use: NamespaceUse) -> int:
    return len(_NAMESPACE) + len(name) + len(_text(use))


def _within(namespaces: Mapping[str, NamespaceUse], limit: int) -> dict[str, NamespaceUse]:
    """The sums within a limit in bytes: without the oldest weeks, then the smallest namespaces as OTHERS."""
    kept = dict(namespaces)
    whole = sum(_sum_bytes(name, use) for name, use in kept.items())
    oldest = iter(sorted({week for use in kept.values() for week in use.weeks}))
    while whole > limit and (week := next(oldest, None)) is not None:
        for name, use in kept.items():
            if week in use.weeks:
                shorter = use.model_copy(
                    update={"weeks": {each: value for each, value in use.weeks.items() if each != week}}
                )
                whole -= len(_text(use)) - len(_text(shorter))
                kept[name] = shorter
    if whole <= limit:
        return kept
    others = kept.pop(OTHERS, None)
    whole -= 0 if others is None else _sum_bytes(OTHERS, others)
    for name in sorted(kept, key=lambda each: (sum(kept[each].accelerator_seconds.values()), each)):
        if others is not None and whole + _sum_bytes(OTHERS, others) <= limit:
            break
        use = kept.pop(name)
        whole -= _sum_bytes(name, use)
        others = use if others is None else _joined(others, use)
    return kept if others is None else kept | {OTHERS: others}


def _add_cost(
    cost: float | None, unpriced: float, seconds: float, price: float | None
) -> tuple[float | None, float]:
    if price is None:
        return cost, round(unpriced + seconds, 2)
    return _sum_of_costs(cost, seconds / _HOUR * price), unpriced


def _sum_of_costs(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else round((one or 0.0) + (other or 0.0), 6)


def _added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return dict(one) | {name: round(one.get(name, 0.0) + value, 2) for name, value in other.items() if value}


def _text(use: ApiModel) -> str:
    return use.model_dump_json(by_alias=True, exclude_none=True)
