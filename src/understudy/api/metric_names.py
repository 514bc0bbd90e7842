"""Every metric, declared once: its kind, its text and its labels.

`metrics` fills them with values, and `docs/tools/reference.py` makes the reference page of them. Beside the labels here
each metric has the name of its job (`naming`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NAMESPACE = "understudy"
_LEADS = "Only where understudy_leading is 1."


@dataclass(frozen=True, slots=True)
class Declared:
    kind: Literal["gauge", "counter", "histogram"]
    text: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[str, Declared] = {
    "leading": Declared("gauge", "1 while this process decides for the job"),
    "finished": Declared("gauge", "1 once all ranks have committed their last step, or the job has ended otherwise"),
    "generation": Declared("gauge", f"Number of the present membership. {_LEADS}"),
    "world_size": Declared("gauge", f"Ranks of the job. {_LEADS}"),
    "committed_step": Declared(
        "gauge", f"Step that every rank of the world has committed; missing until all hosts have told theirs. {_LEADS}"
    ),
    "committed_step_unchanged_seconds": Declared("gauge", f"For how long the committed step has stood still. {_LEADS}"),
    "degraded": Declared("gauge", f"1 while the world trains without some of its ranks. {_LEADS}"),
    "ranks": Declared(
        "gauge",
        "Ranks by the standing of their holders: active, joining, prepared; vacant (the job waits for them), absent "
        f"(it goes on without them). {_LEADS}",
        ("standing",),
    ),
    "spares": Declared("gauge", f"Spare processes: warm, starting, wanted. {_LEADS}", ("state",)),
    "hosts": Declared("gauge", f"Hosts by state: present, silent, suspect, draining, lost. {_LEADS}", ("state",)),
    "stage": Declared("gauge", f"1 for the stage in which the job is. {_LEADS}", ("stage",)),
    "goodput_ratio": Declared(
        "gauge", f"Share of the time since the job began that was training that counts; missing before any. {_LEADS}"
    ),
    "time_seconds": Declared(
        "gauge",
        "Seconds since the job began, by what they went to: productive, setup, repeated (training before a fault that "
        "had to be done again), degraded (the share of absent ranks), recovering, with the code of its first reason as "
        f"cause. {_LEADS}",
        ("part", "cause"),
    ),
    "decisions": Declared("counter", "Decisions of the coordinator", ("kind",)),
    "recoveries": Declared(
        "counter",
        "Finished recoveries: swap (a rank was replaced), regroup (none was), move (by plan)",
        ("kind",),
    ),
    "recovery_seconds": Declared(
        "histogram",
        "Seconds of each phase of a recovery; total: from the first sign of the loss to the resumed world",
        ("phase",),
    ),
    "actions": Declared("counter", "Actions that were asked for over HTTP", ("action", "outcome")),
    "webhook_alerts": Declared("counter", "Alerts that were posted by monitors", ("source", "outcome")),
    "http_refusals": Declared("counter", "Requests over HTTP that were refused", ("reason",)),
    "agent_messages_refused": Declared("gauge", "Messages of agents that were refused", ("where", "kind")),
    "certificate_expires_seconds": Declared(
        "gauge",
        "When certificates end, as Unix time: cert.pem and ca.pem of --certs, store/cert.pem and store/ca.pem of "
        "--store-certs, agents/cert.pem for the first of all connected agents",
        ("file",),
    ),
}
"""By name, without the namespace and without the ending `_total` of counters."""
