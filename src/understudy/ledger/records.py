"""The lines of a ledger."""

from typing import Any

import msgspec

from understudy.protocol.reasons import Code, Reason, because, reason_of
from understudy.protocol.sentences import is_known, lines


class Taken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Samples `start` to `stop` of the `size` in the batch of an absent share. `batch`: the digest of all of it."""

    share: int
    start: int
    stop: int
    size: int
    batch: str | None = None


class Sharing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that was done without some ranks. This one worked on its own `share` of `shares`, and on what it had taken
    of those that were `absent`."""

    share: int
    shares: int
    absent: tuple[int, ...]
    taken: tuple[Taken, ...] = ()


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rank `rank` holds the state after step `step`.

    `inherited`: the member received this state instead of computing it (its predecessor may have written the same step
    before it died; both records should then agree). Digests are None where none were taken at this step. `buffers`: of
    those that only this rank has (batch-norm statistics that replicas do not share), which `parameters` leaves out.
    `extras`: of what the
    script may change between steps as well: schedulers, averages of weights, options of groups; not known of inherited
    state, which was taken later than at the commit. `sharing` is None in a whole world.
    """

    step: int
    rank: int
    member: str
    generation: int
    at: float
    attempt: int = 0
    batch: str | None = None
    parameters: str | None = None
    optimizer: str | None = None
    rng: str | None = None
    buffers: str | None = None
    extras: str | None = None
    inherited: bool = False
    sharing: Sharing | None = None


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decision"):
    """`reason`: a sentence, for people. `code` and `fields`: the same for programs (`protocol.reasons`); empty in the
    ledger of an older version."""

    at: float
    generation: int
    kind: str
    reason: str
    rank: int | None = None
    member: str | None = None
    step: int | None = None
    code: str = ""
    fields: dict[str, Any] = {}

    @property
    def why(self) -> Reason:
        return reason_of(self.code, self.fields) if self.code else because(Code.TOLD, text=self.reason)

    def has(self, code: Code) -> bool:
        """Is this its reason, or a part of it?"""
        return self.why.has(code)

    @property
    def lines(self) -> list[str]:
        """Its reason, with a line for each strategy."""
        return lines(self.why) if is_known(self.why) else [self.reason]


class GapRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="gap"):
    """Records are missing from this file before this line, because they could not be written. A damaged line right
    before it was cut off by the same trouble. `lost`: how many are missing; 0 where nobody counted."""

    at: float
    why: str
    lost: int = 0


class TransferRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank took state from others. `given`: bytes by donor. `checked`: digests that were compared.
    `digest`: of everything that arrived. `distrusted`: donors whose bytes differed from those of the others, and
    were not used."""

    receiver: int
    given: dict[int, int]
    seconds: float
    checked: int
    digest: str = ""
    from_memory: bool = False
    distrusted: tuple[int, ...] = ()

    @property
    def received(self) -> int:
        return sum(self.given.values())


class RecoveryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="recovery"):
    """One recovery from the loss to the resumed world.

    `phases`: seconds, in the order in which they ended: detect, stop, rehearse, regroup, transfer, resume.
    `swaps`: (rank, old member or None, new member). `planned`: ranks moved before anything happened to them; then
    `approach` is the time in which training went on to the boundary. `codes`: of the `reasons`, in their order.
    """

    at: float
    opened_at: float
    first_generation: int
    generation: int
    step: int
    reasons: tuple[str, ...]
    verdict: str
    swaps: tuple[tuple[int, str | None, str], ...]
    phases: dict[str, float]
    transfers: tuple[TransferRecord, ...] = ()
    planned: bool = False
    codes: tuple[str, ...] = ()

    @property
    def received_bytes(self) -> int:
        return sum(transfer.received for transfer in self.transfers)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    command: tuple[str, ...]
    world_size: int
    spares: int
    digest_every: int
    started: str  # ISO 8601
    versions: dict[str, str]


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="audit"):
    """Somebody outside asked for something (`ledger/audit.jsonl`).

    `who`: the name of its token. `action`: what it asked for, `asked`: the same in full. `outcome`: accepted, refused,
    noted, or what would have been. `key`: the idempotency key, or what the alert is known by.
    """

    at: float
    time: str  # ISO 8601, by the wall clock
    who: str
    action: str
    outcome: str
    reason: str
    asked: dict[str, object]
    generation: int | None = None
    key: str = ""
    dry_run: bool = False
