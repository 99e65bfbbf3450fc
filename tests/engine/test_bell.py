"""Bells: no wake-up is lost, whoever rings and however often a bell is used."""

from __future__ import annotations

import threading
from collections.abc import Callable

from minato_async.engine.bell import DueBells


class Rings:
    """A bell that is used again, and lets something happen while it is being rung."""

    def __init__(self) -> None:
        self.rings = 0
        self.meanwhile: Callable[[], None] | None = None

    def ring(self) -> None:
        self.rings += 1
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()


def test_one_that_is_due_again_while_it_is_rung_is_rung_again() -> None:
    due, bell = DueBells(), Rings()

    def meanwhile() -> None:
        due.ring()  # another thread rings and removes the entry
        due.add(bell)  # and there is a new reason

    bell.meanwhile = meanwhile
    due.add(bell)
    due.ring()
    handled = bell.rings
    due.ring()
    # Once by whoever was in the middle of it, or by the next one.
    assert handled >= 3 or bell.rings > handled
    assert not due._due


def test_an_entry_that_is_new_is_not_removed_by_who_rang_an_old_one() -> None:
    """As above, with nobody who goes on to ring: only what was rung may be gone."""
    due, bell, rung = DueBells(), Rings(), threading.Event()
    go_on = threading.Event()

    def hold() -> None:
        rung.set()
        assert go_on.wait(30)

    bell.meanwhile = hold
    due.add(bell)
    slow = threading.Thread(target=due.ring)
    slow.start()
    assert rung.wait(30)
    due.ring()
    before = bell.rings
    due.add(bell)
    go_on.set()
    slow.join()
    due.ring()
    assert bell.rings > before


def test_many_threads_ring_what_many_add() -> None:
    lock, due = threading.Lock(), DueBells()
    asked, seen = [0] * 4, [0] * 4

    class Worker:
        """Asked for by a number that grows; sees it when it is rung."""

        def __init__(self, number: int) -> None:
            self.number = number

        def ring(self) -> None:
            seen[self.number] = asked[self.number]

    workers = [Worker(number) for number in range(4)]

    def work(number: int) -> None:
        for _ in range(2000):
            with lock:
                asked[number] += 1
                due.add(workers[number])
            due.ring()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == asked == [2000] * 4


class TestDropped:
    def test_it_is_freed_when_asked_and_not_before(self) -> None:
        freed: list[int] = []

        class Thing:
            def __del__(self) -> None:
                freed.append(1)

        due = DueBells()
        due.drop(Thing(), [Thing()], None)
        due.ring()
        assert not freed
        due.free()
        assert len(freed) == 2

    def test_a_finalizer_may_drop_and_free_itself(self) -> None:
        freed: list[str] = []
        due = DueBells()

        class Thing:
            def __init__(self, name: str) -> None:
                self.name = name

            def __del__(self) -> None:
                freed.append(self.name)
                if self.name == "outer":
                    due.drop(Thing("inner"))
                    due.free()

        due.drop(Thing("outer"))
        due.free()
        assert freed == ["outer", "inner"]
