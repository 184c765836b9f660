"""What the folds of inefficiency should say, in plain Python: every event of every block is kept, and looked at again.

Blocks of a card are judged stream by stream: a `Place` is a pool and a stream of it, 0 where nobody told one. What is
known of other streams is worked out anew for each question (`is_over`). In a pool that tells streams, a block without
one counts to the first that was told, and is not judged; one from before that is judged no more.

The three patterns of upstream follow shared definitions to the letter (`letter`), or with an operator that is one api
for its thread alone and holds what is nested in it (the folds' rule). The rest is what native/kernel/pool_needs.h and
inefficiency.h promise, worked out from whole lives after the last event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from msmemscope.vocabulary import Kind, Pool

THRESHOLD = 3000
EARLY, LATE, IDLE = "early_allocation", "late_deallocation", "temporary_idleness"
UNUSED, DEAD, REDUNDANT = "unused_allocation", "dead_write", "redundant_allocation"
ATB = 1
AFTER = 1 << 62
JUDGED = (Pool.PTA, Pool.ATB, Pool.MINDSPORE, Pool.HOST, Pool.CUDA)


Place = tuple[Pool, int]
Time = tuple[int, str, int, int]
"""In which nobody needed a block: the api that needed it last, the pattern, the api that ends it (AFTER: none that
needs it), and the number of that event."""


@dataclass(frozen=True)
class Event:
    kind: Kind
    tid: int = 1
    pool: Pool = Pool.NONE
    block: int = 0
    """A number that no other block has."""
    size: int = 0
    site: int = 0
    framework: int = 0
    is_write: bool = False
    overwrites: bool = False
    stream: int = 0
    """As record.h has it. Of an operator: of the card that `pool` is of."""
    is_unknown: bool = False
    """Whether an access reads or writes."""


@dataclass
class Touch:
    what: Kind
    api: int
    at: int
    """Number of the event."""
    is_write: bool = False
    overwrites: bool = False
    is_elsewhere: bool = False
    is_unknown: bool = False


@dataclass
class Life:
    block: int
    place: Place
    size: int
    site: int
    is_made: bool
    is_judged: bool = True
    events: list[Touch] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    ended: int = -1

    @property
    def accesses(self) -> list[Touch]:
        return [one for one in self.events if one.what == Kind.ACCESS]

    def say(self, word: str) -> None:
        if word not in self.words:
            self.words.append(word)


@dataclass
class Running:
    """What is open: for upstream one for all threads."""

    depth: int = 0
    is_given: bool = False
    apis: dict[Place, int] = field(default_factory=dict)
    collected: dict[Place, list[Kind]] = field(default_factory=lambda: defaultdict(list))


def touched_of(life: Life) -> int:
    """The latest api that needed it."""
    return max(one.api for one in life.events if one.what != Kind.FREE)


def is_over(events: Sequence[Touch]) -> bool:
    """Whether what other streams do to a block is over for its own behind these accesses. Two conflict when one of them
    writes for sure; then the later waits for the earlier, and for what that has waited for."""

    def is_ordered(at: int) -> bool:
        one = events[at]
        for later in range(at + 1, len(events)):
            other = events[later]
            surely = (one.is_write or other.is_write) and other.what == Kind.ACCESS
            if surely and (not other.is_elsewhere or is_ordered(later)):
                return True
        return False

    return all(is_ordered(at) for at, one in enumerate(events) if one.what == Kind.ACCESS and one.is_elsewhere)


class Reference:
    """letter: upstream's rule of operators."""

    def __init__(self, *, letter: bool, threshold: int = THRESHOLD) -> None:
        self.letter, self.threshold = letter, threshold
        self.api: dict[Place, int] = defaultdict(int)
        self.last_malloc: dict[Place, int] = {}
        self.last_free: dict[Place, int] = {}
        self.last_access: dict[Place, int] = defaultdict(int)
        self.open: dict[tuple[int, bool], Running] = {}
        self.live: dict[int, Life] = {}
        self.lives: list[Life] = []
        self.level: dict[Place, int] = defaultdict(int)
        self.peak: dict[Place, tuple[int, int, int]] = {}
        """level, latest api that had begun (0: nobody knows), number of the event"""
        self.unjudged: dict[Place, int] = {}
        """Bytes at the peak of blocks that are not judged."""
        self.first: dict[Pool, int] = {}
        """The stream that was told first."""
        self.unused: set[int] = set()
        self.born: dict[tuple[Place, int], list[Life]] = defaultdict(list)
        self.home: dict[int, Place] = {}
        self.served: list[Life] = []
        """Each could have had another block that was dead."""
        self.count = 0

    def feed(self, events: Sequence[Event]) -> None:
        for event in events:
            self.count += 1
            if event.kind in (Kind.OP_START, Kind.OP_END):
                self._operator(event)
            elif event.pool in JUDGED:
                self._memory(event)

    def _key(self, event: Event, is_atb: bool) -> tuple[int, bool]:
        return (0 if self.letter else event.tid), is_atb

    def _operator(self, event: Event) -> None:
        is_atb = event.framework == ATB
        places = [(Pool.ATB, 0)] if is_atb else [(Pool.PTA, 0), (Pool.HOST, 0), (Pool.CUDA, 0)]
        if event.stream and not is_atb:
            places.append((event.pool, event.stream))
        running = self.open.setdefault(self._key(event, is_atb), Running())
        if event.kind == Kind.OP_START:
            if not self.letter and running.depth:
                running.depth += 1
                return
            running.depth, running.is_given = 1, False
            running.apis.clear()
            for place in places:
                self.api[place] += 1
                running.apis[place] = self.api[place]
            return
        if not running.depth:
            return
        running.depth -= 1
        if running.depth:
            return
        for place, kinds in running.collected.items():
            if Kind.MALLOC in kinds:
                self.last_malloc[place] = max(self.last_malloc.get(place, 0), running.apis[place])
            if Kind.FREE in kinds:
                self.last_free[place] = max(self.last_free.get(place, 0), running.apis[place])
        running.collected.clear()

    def _memory(self, event: Event) -> None:
        if event.kind == Kind.MALLOC:
            self.home[event.block] = event.pool, event.stream
            if event.stream and event.pool not in self.first:
                self._tell_first(event.pool, event.stream)
        place = self.home.get(event.block, (event.pool, 0))
        running = self.open.get(self._key(event, event.pool == Pool.ATB))
        if running is not None and (not running.depth or event.pool == Pool.MINDSPORE):
            running = None
        is_given = running is not None and running.is_given
        if place[1]:
            self._happen(event, running, (event.pool, 0))  # the host's order knows it, too
        api = self._happen(event, running, place)
        if event.kind == Kind.MALLOC:
            first = self.first.get(event.pool, 0)
            of = (event.pool, event.stream or first)
            is_judged = bool(event.stream) or not first
            life = Life(event.block, of, event.size, event.site, is_given, is_judged)
            self.live[event.block] = life
            self.lives.append(life)
            if is_judged:
                self.born[of, -(-event.size // 512)].append(life)
            self.level[of] += event.size
            if self.level[of] > self.peak.get(of, (0, 0, 0))[0]:
                self.peak[of] = (self.level[of], self.api[of], self.count)
                others = [one for one in self.live.values() if one.place == of and not one.is_judged]
                self.unjudged[of] = sum(one.size for one in others)
        elif event.block not in self.live:
            return
        life = self.live[event.block]
        if life.is_judged:
            elsewhere = event.kind == Kind.ACCESS and event.stream != place[1]
            touch = Touch(event.kind, api, self.count, event.is_write, event.overwrites, elsewhere, event.is_unknown)
            life.events.append(touch)
        if event.kind == Kind.ACCESS and life.is_judged:
            self._accessed(life)
        elif event.kind == Kind.FREE:
            self.level[life.place] -= life.size
            life.ended = self.count
            if life.is_judged:
                self._freed(life, self.last_malloc.get(place))
                if api > life.events[0].api and self.last_access[place] > life.events[0].api:
                    self.unused.add(life.block)
                self._reuse(life, api)
            del self.live[event.block]

    def _tell_first(self, pool: Pool, stream: int) -> None:
        """Until now all was one, in the order of the host."""
        self.first[pool] = stream
        before, after = (pool, 0), (pool, stream)
        for life in self.lives:
            if life.place == before:
                life.place = after
                life.is_judged = life.is_judged and life.ended >= 0
        if before in self.peak:
            self.level[after] = self.level.pop(before)
            self.unjudged[after] = self.peak.pop(before)[0]
            self.peak[after] = (self.unjudged[after], 0, self.count)

    def _happen(self, event: Event, running: Running | None, place: Place) -> int:
        """The number by one clock."""
        if running is not None:
            if place not in running.apis:
                self.api[place] += 1
                running.apis[place] = self.api[place]
            api = running.apis[place]
            running.collected[place].append(event.kind)
            running.is_given |= event.kind == Kind.ACCESS
        else:
            self.api[place] += 1
            api = self.api[place]
            if event.kind == Kind.MALLOC:
                self.last_malloc[place] = api
            if event.kind == Kind.FREE:
                self.last_free[place] = api
        if event.kind == Kind.ACCESS:
            self.last_access[place] = max(self.last_access[place], api)
        return api

    def _reuse(self, life: Life, api: int) -> None:
        touched = touched_of(life)
        if not any(begin == touched and end == AFTER for begin, _, end, _ in self.times(life)):
            return
        for other in self.born[life.place, -(-life.size // 512)][-8:]:
            if other is not life and other not in self.served and touched < other.events[0].api < api:
                self.served.append(other)
                if other.ended < 0:
                    other.say(REDUNDANT)
                return

    def _accessed(self, life: Life) -> None:
        before, now = life.events[-2], life.events[-1]
        if before.what == Kind.ACCESS and now.api - before.api > self.threshold and is_over(life.events[:-1]):
            life.say(IDLE)
        malloc = life.events[0].api
        first = next((one.api for one in life.accesses if one.api != malloc), None)
        last_free = self.last_free.get(life.place)
        if last_free is not None and first is not None and malloc < last_free < first:
            life.say(EARLY)

    def _freed(self, life: Life, last_malloc: int | None) -> None:
        before, now = life.events[-2], life.events[-1]
        is_late = last_malloc is not None and before.what == Kind.ACCESS and before.api < last_malloc < now.api
        if is_late and is_over(life.events[:-1]):
            life.say(LATE)

    def finish(self) -> None:
        """What whole lives say beyond upstream's three."""
        for life in filter(lambda one: one.events, self.lives):
            for _, pattern, _, _ in self.times(life):
                if pattern in (UNUSED, DEAD):
                    life.say(pattern)

    def times(self, life: Life) -> list[Time]:
        """Each time between touches in which nobody needed it."""
        malloc = life.events[0].api
        touched = malloc
        found: list[Time] = []
        is_other = is_written = False
        for number, one in enumerate(life.events[1:], 1):
            if one.api > touched:
                pattern = ""
                if not is_over(life.events[:number]):
                    pass
                elif one.what == Kind.FREE:
                    pattern = self._last_time(life)
                elif not is_other and not life.is_made:
                    pattern = EARLY
                elif one.is_write and one.overwrites and is_written:
                    pattern = DEAD
                elif one.api - touched > self.threshold:
                    pattern = IDLE
                if pattern:
                    found.append((touched, pattern, AFTER if one.what == Kind.FREE else one.api, one.at))
                touched = one.api
            is_other |= one.what == Kind.ACCESS and one.api != malloc
            is_written = one.is_write
        return found

    def _last_time(self, life: Life) -> str:
        if not life.accesses:
            return UNUSED if not life.is_made and life.block in self.unused else ""
        return LATE if any(not one.is_write for one in life.accesses) else DEAD

    def at_peak(self) -> dict[tuple[Place, int, str], int]:
        """Bytes of lives that have ended, by pool and stream, site and pattern."""
        found: dict[tuple[Place, int, str], int] = defaultdict(int)
        for life in self.lives:
            if not life.is_judged:
                continue
            _, api, at = self.peak.get(life.place, (0, 0, 0))
            if 0 <= life.ended < at or life.events[0].at > at:
                continue
            for begin, pattern, end, until in self.times(life) if life.ended > 0 else self.times_so_far(life):
                if begin < api < end and at < until:
                    found[life.place, life.site, pattern] += life.size
        return dict(found)

    def times_so_far(self, life: Life) -> list[Time]:
        """Of one that lives on: also the time since its last touch, when that is long."""
        found = self.times(life)
        touched = touched_of(life)
        now = self.api[life.place]
        if now - touched > self.threshold and is_over(life.events):
            pattern = IDLE
            if not life.accesses:
                pattern = "" if life.is_made else UNUSED
            elif all(one.is_write for one in life.accesses):
                pattern = DEAD
            if pattern:
                found.append((touched, pattern, AFTER, AFTER))
        return found

    def undecided(self) -> dict[Place, int]:
        """Bytes of blocks that were there at the peak, and of which nobody knows whether they were needed: not touched
        since, and alive or of no pattern; or not judged."""
        found: dict[Place, int] = defaultdict(int, self.unjudged)
        for life in self.lives:
            if not life.is_judged:
                continue
            _, api, at = self.peak.get(life.place, (0, 0, 0))
            touched = touched_of(life)
            is_over = life.ended >= 0
            times = self.times(life) if is_over else self.times_so_far(life)
            known = any(begin == touched and end == AFTER for begin, _, end, _ in times)
            is_there = life.events[0].at <= at and (not is_over or life.ended > at)
            if is_there and touched < api and not known:
                found[life.place] += life.size
        return dict(found)

    def least_peak(self) -> dict[Place, int]:
        """By pool and stream the peak of lives that begin with their first access and end with their last one, and that
        are there when they are allocated, in whole apis: no bound that is larger can be right. Blocks that live on are
        needed by what touched them."""
        found: dict[Place, int] = {}
        for place in self.peak:
            by_api: dict[int, int] = defaultdict(int)
            for life in self.lives:
                if life.place != place:
                    continue
                if not life.events:
                    continue
                malloc = life.events[0].api
                apis = {one.api for one in life.accesses} or {malloc}
                apis |= {malloc} if life.is_made else set()
                for api in {malloc, *range(min(apis), max(apis) + 1)}:
                    by_api[api] += life.size
            found[place] = max(by_api.values(), default=0)
        return found
