"""Pages for monitors. A post is answered with what became of each of its alerts.

An alert that was put off (too many actions) makes the whole post 429, so that Alertmanager sends it again; what has
acted already does not act again.
"""

from fastapi import APIRouter, Request
from starlette.responses import Response

from understudy.api.actions import Actions
from understudy.api.alerts import Alert, identity, seconds_of
from understudy.api.auth import CALLER
from understudy.api.models import AlertmanagerAlert, AlertmanagerPost, GenericPost, WebhookAnswer

_SAID = ("summary", "description", "message")
_LONGEST_SAID = 200


def router(actions: Actions) -> APIRouter:
    pages = APIRouter(tags=["webhooks"])

    def answer(http: Request, alerts: list[Alert]) -> Response:
        answers = [actions.hear(http.scope[CALLER], alert) for alert in alerts]
        put_off = any(one.outcome == "put off" for one in answers)
        content = WebhookAnswer(alerts=answers).model_dump_json()
        headers = {"retry-after": "5"} if put_off else None
        return Response(content, 429 if put_off else 200, headers, media_type="application/json")

    @pages.post("/alertmanager", response_model=WebhookAnswer)
    async def alertmanager(http: Request, body: AlertmanagerPost) -> Response:
        """Alertmanager's own webhook format, version 4."""
        return answer(http, [of_alertmanager(alert) for alert in body.alerts])

    @pages.post("/generic", response_model=WebhookAnswer)
    async def generic(http: Request, body: GenericPost) -> Response:
        """A small format for any other monitor. The label `alertname` is what rules look at."""
        return answer(http, [of_generic(body, actions.wall())])

    return pages


def of_alertmanager(alert: AlertmanagerAlert) -> Alert:
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


def of_generic(post: GenericPost, now: float) -> Alert:
    """Without a beginning it began just now, and the same labels are the same alert for as long as that is kept."""
    return Alert(
        source=post.source,
        name=post.labels.get("alertname", ""),
        labels=post.labels,
        firing=post.status == "firing",
        started=now if post.started_at is None else seconds_of(post.started_at),
        key=identity(post.source, "", post.labels, post.started_at or ""),
        said=post.reason[:_LONGEST_SAID],
    )
