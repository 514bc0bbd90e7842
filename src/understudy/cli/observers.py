"""The detectors and responses of a job, loaded before anything is started. Called by `understudy run`."""

from collections.abc import Mapping
from dataclasses import dataclass

from understudy.agent.responses import Response
from understudy.cli.run_flags import RunRequest
from understudy.detection.contract import Detector
from understudy.plugins import registry
from understudy.plugins.kinds import DETECTOR, RESPONSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """`left_out`: a sentence for each detector that was not asked for by name and does not work."""

    detectors: tuple[Detector, ...]
    responses: Mapping[str, Response]
    left_out: tuple[str, ...] = ()


def load_observers(request: RunRequest) -> Observers:
    """SettingsError when one that a flag names is not there or cannot be used."""
    left_out: list[str] = []
    if request.detectors:
        detectors = [registry.named(DETECTOR, name, f"--detectors {name}") for name in request.detectors]
    else:
        detectors = list(registry.usable(DETECTOR, left_out.append).values())
    responses = {
        kind: registry.named(RESPONSE, name, f"--on-evidence {kind}={name}") for kind, name in request.responses.items()
    }
    return Observers(detectors=tuple(detectors), responses=responses, left_out=tuple(left_out))
