"""Events that are made of others.

    done = OrEvent(stopped, AndEvent(loaded, saved))
    done.wait(5.0)

What differs from machin, on purpose:

- `wait` returns at once where the event is set already, and when its timeout is over; it is true even if what was set
  is cleared again before this thread has woken.
- No wake-up is lost: those that wait are told after an event is set, by the thread that sets it.
"""

import functools
import threading
import weakref
from collections.abc import Callable

__all__ = ["AndEvent", "Event", "OrEvent"]

_turn = threading.RLock()

#: By each plain event those that are made of it.
_made_of: weakref.WeakKeyDictionary[threading.Event, weakref.WeakSet["Event"]] = weakref.WeakKeyDictionary()


class Event:
    """An event that is set or not by what others are: `threading.Event`, or of this kind.

    `set` and `clear` do nothing.
    """

    def __init__(self, *events: "threading.Event | Event") -> None:
        for event in events:
            if not isinstance(event, (threading.Event, Event)):
                raise ValueError(f"{type(event).__name__} is no event; expected a threading.Event or one made of them")
        self._events = events
        self._changed = threading.Condition()
        self._times = 0
        for leaf in self.get_leaf_events():
            _watch(leaf, self)

    def get_leaf_events(self) -> list[threading.Event]:
        """The plain events that it is made of, each once, in the order in which they were given."""
        found: dict[int, threading.Event] = {}
        for event in self._events:
            for leaf in event.get_leaf_events() if isinstance(event, Event) else [event]:
                found.setdefault(id(leaf), leaf)
        return list(found.values())

    def is_set(self) -> bool:
        """Whether it is set now."""
        raise NotImplementedError

    def set(self) -> None:
        """Nothing: it is set by what it is made of."""

    def clear(self) -> None:
        """Nothing, as `set`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for `timeout` seconds at most; whether it was."""
        with self._changed:
            before = self._times
            return self._changed.wait_for(lambda: self._times != before or self.is_set(), timeout)

    def _tell(self) -> None:
        with self._changed:
            if self.is_set():
                self._times += 1
                self._changed.notify_all()


class OrEvent(Event):
    """Is set while any of its events is."""

    def is_set(self) -> bool:
        """Whether any of its events is set now."""
        return any(event.is_set() for event in self._events)


class AndEvent(Event):
    """Is set while all of its events are."""

    def is_set(self) -> bool:
        """Whether all of its events are set now."""
        return all(event.is_set() for event in self._events)


def _watch(leaf: threading.Event, event: Event) -> None:
    """From now on whatever sets the plain event tells the other one."""
    with _turn:
        if leaf not in _made_of:
            _made_of[leaf] = weakref.WeakSet()
            leaf.set = functools.partial(_set, weakref.ref(leaf), type(leaf).set)  # type: ignore[method-assign]
        _made_of[leaf].add(event)


def _set(which: "weakref.ref[threading.Event]", plain: Callable[[threading.Event], None]) -> None:
    leaf = which()
    if leaf is None:
        return
    plain(leaf)
    with _turn:
        told = list(_made_of.get(leaf, ()))
    for event in told:
        event._tell()
