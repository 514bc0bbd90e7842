"""Quiescence is seen when all threads wait, and not while one runs."""

import threading
import time

from understudy.groups.quiescence import Quiescence


def test_waiting_threads_are_still_and_a_running_one_is_not() -> None:
    stop = threading.Event()
    waiting = threading.Thread(target=stop.wait, daemon=True)
    waiting.start()
    answers: list[bool] = []

    def ask() -> None:
        quiescence = Quiescence()
        for _ in range(50):
            answers.append(quiescence.reached())
            time.sleep(0.005)

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()  # this thread waits, too
    assert not answers[0], "one look shows nothing"
    assert any(answers[1:])
    answers.clear()
    asking = threading.Thread(target=ask)
    asking.start()
    number = 0
    while asking.is_alive():
        number += 1
    assert sum(answers) <= 2  # this thread may have been without a processor between two looks
    stop.set()
    waiting.join()
