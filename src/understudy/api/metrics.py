"""Metrics for Prometheus. Counters are counted as things happen; gauges are read from the job at each scrape."""

from collections import Counter as PlainCounter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from understudy.api import views
from understudy.api.event_stream import PHASES, Record
from understudy.api.job import JobInterface
from understudy.api.last_scrape import Scrapes
from understudy.api.metric_names import METRICS, NAMESPACE
from understudy.api.naming import Named
from understudy.foundation.clock import Clock
from understudy.ledger.records import DecisionRecord
from understudy.protocol.commands import DecisionKind
from understudy.protocol.job import JobMachine
from understudy.protocol.stages import Stage
from understudy.wire.certificates import Certificates

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_HOST_STATES = ("present", "silent", "suspect", "draining", "lost")


class Metrics:
    """One registry per server, so that several jobs can live in one process (tests do)."""

    def __init__(
        self,
        interface: JobInterface,
        clock: Clock,
        certificates: Certificates | None = None,
        store_certificates: Certificates | None = None,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else every counter is there twice
        self.refusals: PlainCounter[str] = PlainCounter()  # the same as below, as plain numbers
        self.scrapes = Scrapes(clock)
        self._registry, self._shown = CollectorRegistry(), CollectorRegistry()
        self._shown.register(Named(self._registry, interface.name))
        self._gauges = _Gauges(interface, certificates, store_certificates)
        self._registry.register(self._gauges)
        self._decisions = self._counter("decisions")
        self._recoveries = self._counter("recoveries")
        self._actions = self._counter("actions")
        self._alerts = self._counter("webhook_alerts")
        self._refusals = self._counter("http_refusals")
        seconds = METRICS["recovery_seconds"]
        self._seconds = Histogram(
            "recovery_seconds",
            seconds.text,
            seconds.labels,
            namespace=NAMESPACE,
            registry=self._registry,
            buckets=_SECONDS,
        )
        for kind in DecisionKind:
            self._decisions.labels(kind.value)
        for name in ("swap", "regroup", "move"):
            self._recoveries.labels(name)
        interface.event_stream.listen(self._on_record)

    def _counter(self, name: str) -> Counter:
        told = METRICS[name]
        return Counter(name, told.text, told.labels, namespace=NAMESPACE, registry=self._registry)

    def _on_record(self, record: Record) -> None:
        if isinstance(record, DecisionRecord):
            self._decisions.labels(record.kind).inc()
            self._gauges.stop_seen |= record.kind == DecisionKind.STOP.value
            return
        self._recoveries.labels(views.recovery_kind(record)).inc()
        for phase in PHASES:
            if phase in record.phases:
                self._seconds.labels(phase).observe(record.phases[phase])

    def action(self, action: str, outcome: str) -> None:
        self._actions.labels(action, outcome).inc()

    def alert(self, source: str, outcome: str) -> None:
        self._alerts.labels(source, outcome).inc()

    def refused(self, reason: str) -> None:
        self.refusals[reason] += 1
        self._refusals.labels(reason).inc()

    def value(self, name: str, **labels: str) -> float:
        """Of one sample; for tests and claims."""
        return self._registry.get_sample_value(name, labels) or 0.0

    def page(self) -> bytes:
        page = generate_latest(self._shown)
        self.scrapes.seen(self._gauges.finished)
        return page


class _Gauges(Collector):
    def __init__(
        self, interface: JobInterface, certificates: Certificates | None, store_certificates: Certificates | None
    ) -> None:
        self._interface, self._certificates, self._store_certificates = interface, certificates, store_certificates
        self.stop_seen = False  # a coordinator leads no more when its job has ended, and still answers for a while
        self.finished = False  # as it was shown last

    def describe(self) -> list[Metric]:
        return []  # the names are known without looking at the job, which may not be there yet

    def collect(self) -> Iterator[Metric]:
        machine = self._interface.machine()
        yield _gauge("leading", float(self._interface.leads()))
        self.finished = self.stop_seen or (machine is not None and (machine.released or machine.stopped is not None))
        yield _gauge("finished", float(self.finished))
        counters = self._interface.counters()
        refused: dict[tuple[str, ...], float] = {
            (where, kind): count for where, kinds in counters.items() for kind, count in kinds.items()
        }
        yield _family("agent_messages_refused", refused)
        if ends := self._certificate_ends():
            yield _by_label("certificate_expires_seconds", ends)
        if machine is not None:
            yield from self._of_job(machine)

    def _of_job(self, machine: JobMachine) -> Iterator[Metric]:
        roster = machine.roster
        yield _gauge("generation", machine.generation)
        yield _gauge("world_size", machine.policy.world_size)
        yield from self._of_steps()
        yield from self._of_goodput()
        counts = views.rank_counts(machine)
        yield _by_label("ranks", counts)
        yield _gauge("degraded", float(counts["absent"] > 0))
        wanted = sum(host.spares for host in machine.hosts.by_id.values())
        yield _by_label("spares", {"warm": len(roster.parked), "starting": len(roster.starting), "wanted": wanted})
        yield _by_label("stage", {stage.value: int(stage is machine.stage) for stage in Stage})
        now = self._interface.now()
        states = [views.host_state(host, now) for host in machine.hosts.by_id.values()]
        yield _by_label("hosts", {state: states.count(state) for state in _HOST_STATES})

    def _certificate_ends(self) -> dict[str, float]:
        """The own ones, those for etcd, and the first of all agents that are connected."""
        ends: dict[str, float] = {} if self._certificates is None else dict(self._certificates.ends())
        if self._store_certificates is not None:
            ends |= {f"store/{file}": end for file, end in self._store_certificates.ends().items()}
        if of_agents := self._interface.certificate_ends().values():
            ends["agents/cert.pem"] = min(of_agents)
        return ends

    def _of_steps(self) -> Iterator[Metric]:
        committed = self._interface.committed()
        if committed.step is not None:
            yield _gauge("committed_step", committed.step)
        if committed.unchanged_for is not None:
            yield _gauge("committed_step_unchanged_seconds", committed.unchanged_for)

    def _of_goodput(self) -> Iterator[Metric]:
        account = self._interface.goodput()
        if account is None or account.ratio is None:
            return
        yield _gauge("goodput_ratio", account.ratio)
        parts = {"productive": account.productive, "setup": account.setup, "repeated": account.repeated}
        parts["degraded"] = account.degraded
        seconds: dict[tuple[str, ...], float] = {(part, ""): value for part, value in parts.items()}
        seconds |= {("recovering", code): value for code, value in account.recovering.items()}
        yield _family("time_seconds", seconds)


def _gauge(name: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", METRICS[name].text, value=value)


def _by_label(name: str, counts: Mapping[str, float]) -> GaugeMetricFamily:
    return _family(name, {(value,): count for value, count in counts.items()})


def _family(name: str, counts: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    told = METRICS[name]
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", told.text, labels=told.labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
