"""Checks that a webhook format keeps the contract (`understudy.api.webhook_formats`):

    from understudy_testkit.conformance import webhooks

    def test_my_format_conforms() -> None:
        webhooks.check(MyFormat, {"node": "gpu-7", "problem": "KernelDeadlock"}, {"node": "", "problem": "x" * 1000})

The posts are examples that the model must take. So are those that the model itself names (`json_schema_extra` with
`examples`). What an alert should say must be tested elsewhere.
"""

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError

from understudy.api.alerts import Alert
from understudy.api.models import MOST_ALERTS
from understudy.api.webhook_formats import WebhookFormat
from understudy_testkit.conformance.rule import NotConforming, Rule, check_all, require

_NOW = 1_800_000_000.0
_NONSENSE: tuple[Any, ...] = (None, [], {}, "text", 7, {"alerts": {"alerts": []}}, {"": None}, [[[]]], {"status": 1})


def check(make: Callable[[], WebhookFormat], *posts: Any) -> None:
    """NotConforming at the first rule that is broken. `posts`: as they come out of JSON."""
    check_all(rules(*posts), make)


def rules(*posts: Any) -> tuple[Rule[WebhookFormat], ...]:
    return (
        Rule("has a model of its posts, which can be described", _is_described),
        Rule("takes its own posts, and makes alerts of them", lambda make: _takes(make, posts)),
        Rule("survives every post that its model takes, and makes alerts of it", _survives),
        Rule("makes the same alerts of the same post", lambda make: _is_deterministic(make, posts)),
    )


def _is_described(make: Callable[[], WebhookFormat]) -> None:
    model = make().post
    require(isinstance(model, type) and issubclass(model, BaseModel), f"its post is {model!r}, which is no model")
    try:
        model.model_json_schema()
    except Exception as error:
        raise NotConforming(f"its model cannot be described: {type(error).__name__}: {error}") from error
    require(bool(inspect.getdoc(type(make()))), "it has no docstring, which is the description of its page")


def _read(make: Callable[[], WebhookFormat], post: Any) -> list[Alert] | None:
    """None: its model does not take that."""
    form = make()
    try:
        body = form.post.model_validate(post)
    except ValidationError:
        return None
    try:
        return list(form.alerts(body, _NOW))
    except Exception as error:
        raise NotConforming(f"given {post!r} it raised {type(error).__name__}: {error}") from error


def _with_examples(make: Callable[[], WebhookFormat], posts: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*posts, *make().post.model_json_schema().get("examples", ()))


def _takes(make: Callable[[], WebhookFormat], posts: tuple[Any, ...]) -> None:
    for post in _with_examples(make, posts):
        alerts = _read(make, post)
        require(alerts is not None, f"its model does not take its own post {post!r}")
        _check_alerts(post, alerts or [])


def _survives(make: Callable[[], WebhookFormat]) -> None:
    for post in _NONSENSE:
        _check_alerts(post, _read(make, post) or [])


def _check_alerts(post: Any, alerts: list[Alert]) -> None:
    require(len(alerts) <= MOST_ALERTS, f"given {post!r} it made {len(alerts)} alerts; at most {MOST_ALERTS} are taken")
    for alert in alerts:
        shown = f"given {post!r} it made {alert!r}"
        require(isinstance(alert, Alert), f"{shown}, which is no alert")
        texts = (alert.source, alert.name, alert.key, alert.said, *alert.labels, *alert.labels.values())
        require(all(isinstance(text, str) for text in texts), f"{shown}: labels and texts must be text")
        require(isinstance(alert.firing, bool), f"{shown}: it fires or it does not")
        require(alert.started is None or isinstance(alert.started, float), f"{shown}: it began at seconds since 1970")
        require(
            bool(alert.key) and bool(alert.source), f"{shown}, without a key by which it is known again, or a source"
        )


def _is_deterministic(make: Callable[[], WebhookFormat], posts: tuple[Any, ...]) -> None:
    for post in (*_with_examples(make, posts), *_NONSENSE):
        require(_read(make, post) == _read(make, post), f"given {post!r} twice, it made different alerts")
