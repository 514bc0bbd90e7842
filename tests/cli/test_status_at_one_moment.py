"""What `understudy status` shows is of one moment, however fast the job moves."""

from typing import Any

from understudy.cli.api_client import REFUSED, ApiProblem
from understudy.cli.status import look


class MovingJob:
    """Stands in for a client. A generation is opened, and a rank swapped, between any two requests."""

    url = "http://job"

    def __init__(self, *, has_overview: bool) -> None:
        self._generation, self._has_overview = 0, has_overview

    def leading(self) -> "tuple[MovingJob, Any]":
        return self, self.get("/v1/job")

    def get(self, path: str) -> Any:
        self._generation += 1
        member = {"rank": 0, "member": f"m-{self._generation}"}
        pages: dict[str, Any] = {
            "job": {"leading": True, "stage": "training", "generation": self._generation},
            "members": [member],
            "spares": [],
            "hosts": [{"host": "a", "ranks": [0], "holder": member["member"]}],
        }
        if path != "/v1/overview":
            return pages[path.removeprefix("/v1/")]
        if not self._has_overview:
            raise ApiProblem(REFUSED, "there is no such page", "", 404)
        return pages


def test_all_pages_are_of_one_generation() -> None:
    seen = look(MovingJob(has_overview=True))  # type: ignore[arg-type]
    assert seen.members[0]["member"] == seen.hosts[0]["holder"] == f"m-{seen.job['generation']}"


def test_an_older_job_is_asked_page_by_page() -> None:
    seen = look(MovingJob(has_overview=False))  # type: ignore[arg-type]
    assert seen.job["generation"] == 1 and seen.members and seen.hosts
