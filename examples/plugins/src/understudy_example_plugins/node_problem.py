"""A webhook format for a monitor of nodes that posts one problem at a time. The monitor is made up."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from understudy.api.alerts import Alert, identity, seconds_of

_Text = Annotated[str, Field(max_length=200)]


class NodeProblemPost(BaseModel):
    """What the monitor posts. `since`: RFC 3339, with its time zone."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"node": "gpu-7", "problem": "KernelDeadlock", "since": "2026-11-18T06:00:00Z", "solved": False},
                {"node": "gpu-7", "problem": "KernelDeadlock", "since": "2026-11-18T06:00:00Z", "solved": True},
            ]
        }
    )

    node: _Text
    problem: _Text
    since: _Text
    solved: bool = False


class NodeProblem:
    """One problem of one node, as the monitor of nodes posts it."""

    contract_version = 1
    post = NodeProblemPost

    def alerts(self, post: NodeProblemPost, _now: float) -> list[Alert]:
        labels = {"alertname": post.problem, "node": post.node}
        alert = Alert(
            source="node-problem",
            name=post.problem,
            labels=labels,
            firing=not post.solved,
            started=seconds_of(post.since),
            key=identity("node-problem", "", labels, post.since),
            said=f"{post.problem} on {post.node}",
        )
        return [alert]
