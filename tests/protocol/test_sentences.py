"""From a reason to words: in one line, in several, and in those of another version."""

import msgspec
import pytest

from understudy.protocol.advice import advice_on
from understudy.protocol.reasons import Code, Reason, because, fields_of, reason_of
from understudy.protocol.sentences import is_known, lines, named, sentence

LOST = because(Code.RANK_LOST, rank=1, member="m-1", cause=because(Code.SIGNALLED, text="killed by signal 9"))
NO_SWAP = because(Code.NO_STRATEGY, strategy="swap", why=because(Code.NO_SPARES_OFFERED))
NO_DEGRADE = because(Code.NO_STRATEGY, strategy="degrade", why=because(Code.NOT_A_REPLICA, ranks=(1, 3)))
STOP = because(Code.CANNOT_GO_ON, cause=LOST, tried=(NO_SWAP, NO_DEGRADE))


def test_one_line_per_strategy_and_a_sentence_of_all() -> None:
    assert lines(STOP) == [
        "rank 1 (member m-1) was lost: killed by signal 9",
        "no swap: the job was started with --spares 0",
        "no degrade: ranks 1, 3 cannot be done without: only replicas of DDP and HSDP can",
    ]
    assert sentence(STOP) == "; ".join(lines(STOP))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (because(Code.ALREADY_MOVING, ranks=(1,)), "rank 1 is already being migrated"),
        (because(Code.ALREADY_MOVING, ranks=(1, 2)), "ranks 1, 2 are already being migrated"),
        (because(Code.BUDGET_SPENT, limit=1, strategy="swap"), "it was taken once (policy: swap budget)"),
        (because(Code.BUDGET_SPENT, limit=3, strategy="swap"), "all 3 are used up (policy: swap budget)"),
        (because(Code.SEEN_BUSY, seconds=7, where="in load"), "busy for 7 s (in load)"),
        (because(Code.SEEN_BUSY, seconds=7, where=""), "busy for 7 s"),
        (because(Code.NO_SUCH_RANK, ranks=(), last=3), "there is no such rank: ranks are 0 to 3"),
        (
            because(Code.HOST_DRAINED, host="a", ranks=(), why=NO_SWAP.get("why")),
            "host a is drained (it holds no rank): ",
        ),
        (because(Code.LOST_TOO_OFTEN, rank=0, count=3, step=None, limit=2), "3 times outside its steps (limit 2, "),
        (because(Code.LOST_TOO_OFTEN, rank=0, count=3, step=0, limit=2), "3 times in step 0 (limit 2, "),
        (
            because(Code.HOST_READMITTED, host="a", held=(because(Code.WAS_DRAINED),) * 2, why=NO_SWAP),
            "drained, it was",
        ),
        (because(Code.NO_SUCH_HOST, host="z", hosts=("a", "b")), "there is no host z; present are: a, b"),
        (because(Code.NO_RANK_PASSED_FENCE, ranks=(0, 1), step=2), "ranks 0, 1 come from devices, and are not known"),
        (because(Code.RETRY, why=because(Code.ALL_AT_FENCE, step=2), swap=None), "at the fence of step 2 with final"),
    ],
)
def test_words(reason: Reason, words: str) -> None:
    assert words in sentence(reason)


def test_no_line_is_left_of_what_is_missing() -> None:
    assert len(lines(because(Code.COMMIT, why=because(Code.ALL_AT_FENCE, step=2), swap=None))) == 1


def test_a_few_ranks_are_named_and_the_rest_counted() -> None:
    assert named([3]) == "rank 3" and named(range(10)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_a_reason_is_kept_sent_and_written_as_it_is() -> None:
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(STOP), type=Reason)
    assert sent == STOP and hash(sent) == hash(STOP)
    written = msgspec.json.decode(msgspec.json.encode(fields_of(STOP)))
    assert written["cause"]["fields"]["cause"] == {"code": "signalled", "fields": {"text": "killed by signal 9"}}
    assert reason_of(STOP.code, written) == STOP


def test_what_is_a_part_of_a_reason() -> None:
    assert STOP.has(Code.SIGNALLED) and STOP.has(Code.NOT_A_REPLICA) and not STOP.has(Code.NO_STATE_LEFT)
    assert STOP.get("cause") == LOST and STOP.get("nothing") is None


def test_a_code_of_another_version_is_shown_with_its_fields() -> None:
    unknown = Reason("sun_spots", (("count", 3), ("ranks", (1, 2))))
    assert not is_known(unknown) and is_known(STOP)
    assert sentence(unknown) == "sun_spots (count 3, ranks ranks 1, 2)"


def test_advice_goes_by_the_code() -> None:
    assert "--spares 1" in advice_on(STOP, "none")
    assert "a spare" in advice_on(because(Code.NO_SPARE, why=because(Code.NO_SPARES_OFFERED)), "none")
    assert advice_on(because(Code.NEW_RUN), "none") == "none"
