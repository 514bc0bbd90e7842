"""So many at once, and then so many per second: for those who ask first, and for those who tell what was used."""

from understudy.foundation.token_bucket import Rate, TokenBucket


def test_a_full_bucket_gives_its_burst_and_then_says_how_long_to_wait() -> None:
    bucket = TokenBucket(Rate(burst=2, per_second=0.5), 0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [0.0, 0.0, 2.0, 2.0], "whoever is refused takes nothing"
    assert bucket.take(1.0) == 1.0
    assert bucket.take(2.0) == 0.0


def test_it_is_never_fuller_than_its_burst() -> None:
    bucket = TokenBucket(Rate(burst=2, per_second=0.5), 0.0)
    assert [bucket.take(1000.0) for _ in range(3)] == [0.0, 0.0, 2.0]


def test_what_was_spent_already_is_owed() -> None:
    bucket = TokenBucket(Rate(burst=10, per_second=100.0), 0.0)
    assert bucket.spend(10.0, 0.0) == 0.0
    assert bucket.spend(20.0, 0.0) == 0.2
    assert bucket.spend(10.0, 0.1) == 0.2, "ten were paid back, ten are new"
    assert bucket.spend(1.0, 1.0) == 0.0


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    bucket = TokenBucket(Rate(burst=1, per_second=1.0), 10.0)
    assert bucket.take(5.0) == 0.0
    assert bucket.take(5.0) == 1.0
