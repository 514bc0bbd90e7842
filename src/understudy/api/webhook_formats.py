"""What monitors post: the contract of a webhook format, and our own two.

A format turns one post into alerts; what becomes of those is the same for all formats (`alerts.py`, `rules.py`). Each
has a page of its own, `/v1/webhooks/NAME`. Whatever a format does with a post, the job goes on.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from understudy.api.alerts import Alert, identity, seconds_of
from understudy.api.models import AlertmanagerAlert, AlertmanagerPost, GenericPost

_SAID = ("summary", "description", "message")
_LONGEST_SAID = 200


@runtime_checkable
class WebhookFormat(Protocol):
    """`post`: a pydantic model, by which a post is checked and described before `alerts` sees it. The first line of the
    docstring of a format is the description of its page."""

    @property
    def post(self) -> type[BaseModel]: ...

    def alerts(self, post: Any, now: float, /) -> Sequence[Alert]:
        """Pure. `post`: a value of the model. `now`: seconds since 1970, for posts that do not say when it began."""
        ...


class Alertmanager:
    """Alertmanager's own webhook format, version 4."""

    contract_version = 1
    post = AlertmanagerPost

    def alerts(self, post: AlertmanagerPost, _now: float) -> list[Alert]:
        return [_of_alertmanager(alert) for alert in post.alerts]


def _of_alertmanager(alert: AlertmanagerAlert) -> Alert:
    said = next((alert.annotations[name] for name in _SAID if alert.annotations.get(name)), "")
    return Alert(
        source="alertmanager",
        name=alert.labels.get("alertname", ""),
        labels=alert.labels,
        firing=alert.status == "firing",
        started=seconds_of(alert.startsAt),
        key=identity("alertmanager", alert.fingerprint, alert.labels, alert.startsAt),
        said=said[:_LONGEST_SAID],
    )


class Generic:
    """A small format for any other monitor. The label `alertname` is what rules look at."""

    contract_version = 1
    post = GenericPost

    def alerts(self, post: GenericPost, now: float) -> list[Alert]:
        """Without a beginning it began just now, and the same labels are the same alert for as long as that is kept."""
        alert = Alert(
            source=post.source,
            name=post.labels.get("alertname", ""),
            labels=post.labels,
            firing=post.status == "firing",
            started=now if post.started_at is None else seconds_of(post.started_at),
            key=identity(post.source, "", post.labels, post.started_at or ""),
            said=post.reason[:_LONGEST_SAID],
        )
        return [alert]
