"""Every alert of deploy/prometheus fires when it should and at no other time, on the metrics of played jobs."""

from pathlib import Path

import pytest
import yaml
from tests.api.recorded_series import RULES
from tests.api.scraped_jobs import Ends, Scene, ScrapedJob, play

from understudy.api import views
from understudy.foundation.ids import HostId
from understudy.ledger.records import RecoveryRecord
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.stages import Stage
from understudy_testkit.faults.alert_replay import promtool

pytestmark = pytest.mark.timeout(180)
ENDED = Cause(kind=CauseKind.EXIT, detail="ended", exit_code=0)


def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", str(RULES))


def test_nothing_fires_for_hours_while_two_jobs_are_well(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.minutes(4 * 60)
        scene.expect()

    play(tmp_path, story, ScrapedJob("one"), ScrapedJob("two", spare=False))


def test_a_recovery_alone_is_no_alert_and_the_job_does_not_stand_still_after_it(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        await job.swap()
        await scene.minutes(4)
        scene.expect()
        await scene.minutes(40)
        scene.expect(("UnderstudyNoWarmSpare", "one"))  # the host of spares starts no other one in this play

    play(tmp_path, story, job)


def test_a_recovery_that_does_not_end(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        await job.lose(job.b, "m-1")
        assert job.stage is Stage.STOPPING
        job.moves = False
        await scene.minutes(1)
        scene.expect()
        await scene.minutes(5)
        scene.expect(("UnderstudyRecoveryTakesLong", "one"))

    play(tmp_path, story, job, ScrapedJob("two"))


def test_a_degraded_world_is_a_warning_and_no_vacant_rank(tmp_path: Path) -> None:
    job = ScrapedJob("one", spare=False)

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        await job.lose(job.b, "m-1")
        await job.report_all(job.a)
        await job.resume_all(job.a)
        await scene.minutes(0.5)
        scene.expect()
        await scene.minutes(60)
        scene.expect(("UnderstudyDegraded", "one"))

    play(tmp_path, story, job, ScrapedJob("two"))


def test_a_job_that_stands_still_and_goes_on(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(5)
        job.moves = False
        await scene.minutes(14)
        scene.expect()
        await scene.minutes(3)
        scene.expect(("UnderstudyStandsStill", "one"))
        job.moves = True
        await scene.minutes(1)
        scene.expect()

    play(tmp_path, story, job, ScrapedJob("two"))


def test_recoveries_without_progress_do_not_hide_that_it_stands_still(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(5)
        job.moves = False
        await scene.minutes(8)
        await job.swap()
        await scene.minutes(4)
        scene.expect()
        await scene.minutes(5)
        scene.expect(("UnderstudyStandsStill", "one"), ("UnderstudyNoWarmSpare", "one"))

    play(tmp_path, story, job)


def test_a_job_that_ends_is_silent_for_good(tmp_path: Path) -> None:
    """Its scripts take their time after the last step; then the API answers once more, and is gone."""
    job = ScrapedJob("one", spare=False)

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        await job.finish()
        job.moves = False
        await scene.minutes(40)
        scene.expect()
        for host, member in ((job.a, "m-0"), (job.b, "m-1")):
            await job.say(host, ev.MemberLost(at=job.clock.now(), member=member, cause=ENDED))  # type: ignore[arg-type]
            await scene.minutes(3)
        assert job.stage is Stage.STOPPED
        job.first.service.leader = None
        await scene.minutes(0.5)
        job.first.answers = job.second.answers = False
        await scene.minutes(180)
        scene.expect()

    play(tmp_path, story, job, ScrapedJob("two"))


def test_a_job_that_is_stopped_at_once_is_seen_to_end_by_one_scrape(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        assert job.leader.coordinator is not None
        job.leader.coordinator.request_stop("SIGTERM was received", 143)
        await job.settle()
        job.first.service.leader = None
        await scene.minutes(0.5)
        job.first.answers = job.second.answers = False
        await scene.minutes(90)
        scene.expect()

    play(tmp_path, story, job)


def test_all_apis_gone_without_an_end(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        job.first.answers = job.second.answers = False
        await scene.minutes(0.5)
        scene.expect()
        await scene.minutes(3)
        scene.expect(("UnderstudyDown", ""), ("UnderstudyNobodyLeads", "one"))
        await scene.minutes(60)
        scene.expect()  # forgotten by then

    play(tmp_path, story, job, ScrapedJob("two"))


def test_a_dead_leader_whose_standby_takes_over(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        job.first.answers = False
        await scene.minutes(0.5)
        await job.take_over()
        await scene.minutes(5)
        scene.expect(("UnderstudyDown", ""))

    play(tmp_path, story, job)


def test_a_leaderless_job_is_not_hidden_by_another_one(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        job.leader.step_down("etcd is gone")
        job.moves = False
        await scene.minutes(0.5)
        scene.expect()
        await scene.minutes(30)
        scene.expect(("UnderstudyNobodyLeads", "one"))

    play(tmp_path, story, job, ScrapedJob("two"))


def test_two_that_lead_one_job(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        job.second.service.leader = job.leader
        await scene.minutes(3)
        scene.expect(("UnderstudyTwoLead", "one"))
        job.first.service.leader = None
        await scene.minutes(20)
        scene.expect()

    play(tmp_path, story, job, ScrapedJob("two"))


def test_a_lost_host(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        assert job.spare.line is not None and job.leader.coordinator is not None
        job.leader.gone(job.spare.line, "the connection ended")
        await scene.minutes(4)
        scene.expect()
        job.leader._tick()
        await job.settle()
        assert not job.leader.coordinator.machine.hosts.by_id[HostId("spare")].present
        await scene.minutes(10)
        scene.expect(("UnderstudyHostUnwell", "one"), ("UnderstudyNoWarmSpare", "one"))

    play(tmp_path, story, job, ScrapedJob("two"))


def test_a_rank_that_waits_for_a_silent_host(tmp_path: Path) -> None:
    job = ScrapedJob("one", replicas=False)

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        assert job.b.line is not None and job.spare.line is not None and job.leader.coordinator is not None
        job.leader.gone(job.b.line, "the connection ended")
        await scene.minutes(0.5)
        job.leader.gone(job.spare.line, "the connection ended")
        job.leader._tick()
        await job.settle()
        job.moves = False
        assert views.rank_counts(job.leader.coordinator.machine)["vacant"] == 1
        await scene.minutes(1)
        scene.expect()
        await scene.minutes(3)
        scene.expect(("UnderstudyRankVacant", "one"), ("UnderstudyRecoveryTakesLong", "one"))

    play(tmp_path, story, job, ScrapedJob("two"))


def test_recoveries_that_are_many_and_slow(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        for generation in range(2, 10):
            job.first.event_stream.append(recovery(generation, 50.0))
            await scene.minutes(3)
        scene.expect(("UnderstudyRecoversOften", "one"), ("UnderstudySlowRecovery", "one"))
        await scene.minutes(90)
        scene.expect()

    play(tmp_path, story, job, ScrapedJob("two"))


def test_a_certificate_that_ends_within_a_week(tmp_path: Path) -> None:
    job = ScrapedJob("one", certificates=Ends(7 * 86_400.0 + 1800.0))

    async def story(scene: Scene) -> None:
        await scene.minutes(29)
        scene.expect()
        await scene.minutes(2)
        scene.expect(("UnderstudyCertificateEnds", "one"))

    play(tmp_path, story, job, ScrapedJob("two", certificates=Ends(30 * 86_400.0)))


def recovery(generation: int, seconds: float) -> RecoveryRecord:
    return RecoveryRecord(
        at=0.0,
        opened_at=0.0,
        first_generation=generation,
        generation=generation,
        step=7,
        verdict="go on",
        reasons=("killed",),
        swaps=((1, "m-1", "m-2"),),
        phases={"total": seconds},
    )


def test_every_alert_was_seen_to_fire_here() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    played = Path(__file__).read_text()
    assert [rule["alert"] for rule in rules if f'("{rule["alert"]}", ' not in played] == []


def test_requests_that_are_refused(tmp_path: Path) -> None:
    job = ScrapedJob("one")

    async def story(scene: Scene) -> None:
        await scene.minutes(10)
        metrics = job.first.metrics
        metrics.action("migrate", "refused")
        metrics.refused("our own fault")
        metrics.refused("token")
        await scene.minutes(0.5)
        for _ in range(24):
            for _ in range(60):
                metrics.refused("token")
            await scene.minutes(0.5)
        metrics.refused("our own fault")
        for _ in range(5):
            metrics.action("migrate", "refused")
        await scene.minutes(0.5)
        scene.expect(
            ("UnderstudyRequestsRefused", "one"), ("UnderstudyOwnFault", "one"), ("UnderstudyActionsRefused", "one")
        )
        await scene.minutes(30)
        scene.expect()

    play(tmp_path, story, job, ScrapedJob("two"))
