"""Pages for monitors, one for each format. A post is answered with what became of each of its alerts.

An alert that was put off (too many actions) makes the whole post 429, so that Alertmanager sends it again; what has
acted already does not act again.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from understudy.api.actions import Actions
from understudy.api.alerts import Alert
from understudy.api.auth import CALLER
from understudy.api.models import MOST_ALERTS, WebhookAnswer
from understudy.api.webhook_formats import WebhookFormat


def router(actions: Actions, formats: Mapping[str, WebhookFormat], say: Callable[[str], None]) -> APIRouter:
    """`say` is told of a format whose page cannot be made."""
    pages = APIRouter(tags=["webhooks"])
    for name, form in formats.items():
        try:
            pages.add_api_route(f"/{name}", _page(actions, name, form), methods=["POST"], response_model=WebhookAnswer)
        except Exception as error:  # of another package: the API does without it
            say(f"the webhook {name} is left out, its post cannot be described: {type(error).__name__}: {error}")
    return pages


def _page(actions: Actions, name: str, form: WebhookFormat) -> Callable[..., Any]:
    async def page(http: Request, body: Any) -> Response:
        alerts = _alerts(name, form, body, actions.wall())
        answers = [actions.hear(http.scope[CALLER], alert) for alert in alerts]
        put_off = any(one.outcome == "put off" for one in answers)
        content = WebhookAnswer(alerts=answers).model_dump_json()
        headers = {"retry-after": "5"} if put_off else None
        return Response(content, 429 if put_off else 200, headers, media_type="application/json")

    page.__annotations__["body"] = form.post
    page.__name__ = name.replace("-", "_")
    page.__doc__ = (inspect.getdoc(type(form)) or "").partition("\n")[0]
    return page


def _alerts(name: str, form: WebhookFormat, body: Any, now: float) -> Sequence[Alert]:
    """An error here is answered with 500 and told to the operator; it names the format."""
    try:
        alerts = form.alerts(body, now)
        if len(alerts) <= MOST_ALERTS and all(isinstance(alert, Alert) for alert in alerts):
            return alerts
    except Exception as error:
        raise RuntimeError(f"the webhook {name} cannot read a post: {error!r}") from error
    raise RuntimeError(f"the webhook {name} made something else of a post than at most {MOST_ALERTS} alerts")
