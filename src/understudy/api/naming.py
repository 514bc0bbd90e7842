"""Writes the name of the training job on every metric, so that jobs which one Prometheus scrapes cannot be confused.

The label is `training_job`: Prometheus uses `job` itself, for what it scrapes.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

LABEL = "training_job"


class Named(Collector):
    """Everything that `registry` has, and the label on each sample."""

    def __init__(self, registry: CollectorRegistry, name: str) -> None:
        self._registry, self._name = registry, name

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample._replace(labels={LABEL: self._name, **sample.labels}) for sample in family.samples]
            yield family
