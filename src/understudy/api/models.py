"""Everything that goes in and out over HTTP, with its limits. What comes in is taken exactly as written: no unknown
fields, no numbers in quotes, and nothing without a bound."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_RANKS = 1024  # in one request
MOST_ALERTS = 500  # in one post
_MOST_LABELS = 64
_LARGEST_RANK = 10_000_000

# One line that a terminal can show: no control characters, no other ends of lines.
_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
Reason = Annotated[
    str, Field(min_length=1, max_length=500, pattern=_ONE_LINE, description="the name of the caller, and why")
]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=_ONE_LINE)]
RankNumber = Annotated[int, Field(ge=0, le=_LARGEST_RANK)]
Labels = Annotated[
    dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=4096)]],
    Field(max_length=_MOST_LABELS),
]


class Asked(BaseModel):
    """A body of ours."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Given(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# -- actions ----------------------------------------------------------------------------------------------------------


class ActionBody(Asked):
    reason: Reason
    dry_run: Annotated[bool, Field(description="only say what would be decided")] = False


class Migrate(ActionBody):
    ranks: Annotated[list[RankNumber], Field(min_length=1, max_length=MOST_RANKS)]


class Drain(ActionBody):
    host: Name


class Replace(ActionBody):
    rank: RankNumber
    member: Annotated[Name | None, Field(description="only if it is still this one that holds the rank")] = None


class Abort(ActionBody):
    pass


class Spares(ActionBody):
    host: Name
    spares: Annotated[int, Field(ge=0, le=1024)]


# -- webhooks ---------------------------------------------------------------------------------------------------------


class _Foreign(BaseModel):
    """A third party's format, which grows: fields that we do not know are passed over."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


Time = Annotated[str, Field(max_length=64)]


class AlertmanagerAlert(_Foreign):
    status: Literal["firing", "resolved"]
    labels: Labels
    annotations: Labels = Field(default_factory=dict)
    startsAt: Time
    fingerprint: Annotated[str, Field(max_length=128)] = ""


class AlertmanagerPost(_Foreign):
    """What Alertmanager sends to a webhook receiver, version 4."""

    version: Literal["4"]
    receiver: Annotated[str, Field(max_length=1024)] = ""
    alerts: Annotated[list[AlertmanagerAlert], Field(max_length=MOST_ALERTS)]


class GenericPost(Asked):
    """For monitors that speak no other format. Without `started_at` the same labels act once in an hour."""

    source: Annotated[str, Field(min_length=1, max_length=64, pattern=_ONE_LINE)]
    status: Literal["firing", "resolved"]
    labels: Labels
    reason: Reason
    started_at: Annotated[Time | None, Field(description="RFC 3339, with its time zone")] = None


# -- answers ----------------------------------------------------------------------------------------------------------


class Refusal(Given):
    """Every answer that refuses. `code`: why the job does (docs/reference/reasons.md); empty if the API does."""

    reason: str
    code: str = ""
    advice: str
    problems: list[str] = Field(default_factory=list)
    leader_url: Annotated[str | None, Field(description="with 503: the API of the one that leads, if known")] = None


class MemberView(Given):
    member: str
    host: str
    standing: str
    rank: int | None
    slot: int | None
    step: int | None
    connected: bool


class HostView(Given):
    host: str
    state: str
    ranks: list[int]
    spares_wanted: int
    spares_warm: int
    spares_starting: int
    suspect_for_seconds: float
    certificate_ends: int | None = None  # Unix time


class RecoveryView(Given):
    """Seconds by phase. `kind`: swap (a rank was replaced), regroup (none was), move (by plan)."""

    kind: str
    generation: int
    step: int
    reasons: list[str]
    codes: list[str]
    verdict: str
    swaps: list[tuple[int, str | None, str]]
    phases: dict[str, float]
    received_bytes: int
    seconds_ago: float


class GoodputView(Given):
    """Seconds since the job began, by what they went to. `recovering`: by the code of the first reason. `ratio`:
    productive seconds of all. `sentence`: for people."""

    ratio: float | None
    seconds: float
    productive: float
    setup: float
    recovering: dict[str, float]
    repeated: float
    degraded: float
    sentence: str


class JobView(Given):
    """`committed_step`: what every rank of the world has committed. `absent_ranks`: the world goes on without these.
    `code`, `fields`: the reason for which the job has ended, for programs (docs/reference/reasons.md)."""

    job: str
    leading: bool
    leader: str
    leader_url: Annotated[str | None, Field(description="of a standby: the API of the one that leads, if known")]
    generation: int | None
    stage: str | None
    world_size: int | None
    ranks_up: int
    committed_step: int | None
    committed_step_unchanged_seconds: float | None
    degraded: bool
    absent_ranks: list[int]
    spares_warm: int
    spares_starting: int
    predicted_recovery_seconds: float | None
    recoveries: int
    last_recovery: RecoveryView | None
    goodput: GoodputView | None
    newest_event: int
    outcome: str | None
    reason: str | None
    code: str | None
    fields: dict[str, Any]


class Overview(Given):
    """All of it at one moment: pages that are asked for one after another may tell of different generations. A
    coordinator that stands by, or waits for hosts, has only the job to show."""

    job: JobView
    members: list[MemberView]
    spares: list[MemberView]
    hosts: list[HostView]


class EventView(Given):
    """A decision or a finished recovery. `details`: as in the ledger, with the fields of the reason."""

    number: int
    type: Literal["decision", "recovery"]
    kind: str
    reason: str
    code: str
    generation: int
    details: dict[str, Any]


class Events(Given):
    """`newest`: ask for what comes after it the next time. `missed`: so many were not kept."""

    events: list[EventView]
    newest: int
    missed: int


class ActionAnswer(Given):
    """`follow`: events after this number came of it. `code`: why it would be refused."""

    action: str
    outcome: Literal["accepted", "would be accepted", "would be refused"]
    dry_run: bool
    reason: str
    code: str | None = None
    advice: str
    generation: int
    follow: int
    decisions: list[EventView]


class AlertAnswer(Given):
    """`code`: why the job refuses what the alert asks for (docs/reference/reasons.md)."""

    alert: str
    action: str
    outcome: Literal["accepted", "refused", "noted", "duplicate", "resolved", "put off"]
    reason: str
    code: str = ""


class WebhookAnswer(Given):
    alerts: list[AlertAnswer]
