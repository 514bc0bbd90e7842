"""A real Prometheus and a real Alertmanager, with an exporter that knows which worker is stopped: for claims and tests.

The exporter asks the kernel for the state of each rank's process whenever it is scraped. The rule fires at once, and
Alertmanager posts to the job's API. Everything is on loopback, on free ports, with the data in a folder of the caller.
"""

import contextlib
import http.server
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from understudy.foundation.parenthood import die_with
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.ports import free_ports

METRIC, ALERT = "worker_stopped", "WorkerStopped"
INTERVAL = "250ms"  # of scraping and of looking at rules; both have a default of a minute
_READY_TIMEOUT = 60.0

PROMETHEUS = """\
global:
  scrape_interval: {interval}
  scrape_timeout: {interval}
  evaluation_interval: {interval}
rule_files: [{folder}/rules.yml]
alerting:
  alertmanagers:
    - static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]
scrape_configs:
  - job_name: workers
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
"""
RULES = """\
groups:
  - name: workers
    rules:
      - alert: {alert}
        expr: {metric} == 1
        annotations: {{summary: "the process of rank {{{{ $labels.rank }}}} is stopped"}}
"""
ALERTMANAGER = """\
route: {{receiver: understudy, group_by: ["..."], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers:
  - name: understudy
    webhook_configs:
      - url: http://127.0.0.1:{api}/v1/webhooks/alertmanager
        http_config: {{authorization: {{credentials: {token}}}}}
"""
ALERT_RULES = """\
[[rule]]
alert = "{alert}"
action = "abort"
scope = "rank"

[[host]]
name = "this host"
aliases = ["127.0.0.1"]
"""


def why_not() -> str | None:
    missing = [name for name in ("prometheus", "prometheus-alertmanager") if shutil.which(name) is None]
    return f"{' and '.join(missing)} are not installed (Debian's packages have these names)" if missing else None


def write_alert_rules(folder: Path) -> Path:
    """For `--alert-rules`: this alert means that the rank is replaced now."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "alert-rules.toml"
    file.write_text(ALERT_RULES.format(alert=ALERT))
    return file


@dataclass(slots=True)
class Exporter:
    """`stopped`: rank -> is its process stopped? Asked at every scrape. `seen`: whenever a scrape was the first to say
    so."""

    stopped: Callable[[], Mapping[int, bool]]
    seen: list[tuple[int, float]] = field(default_factory=list)
    port: int = 0
    _last: dict[int, bool] = field(default_factory=dict)

    def page(self) -> bytes:
        lines = [f"# HELP {METRIC} Whether the process of a rank is stopped.", f"# TYPE {METRIC} gauge"]
        for rank, value in self.stopped().items():
            if value and not self._last.get(rank):
                self.seen.append((rank, time.monotonic()))
            self._last[rank] = value
            lines.append(f'{METRIC}{{rank="{rank}"}} {int(value)}')
        return ("\n".join(lines) + "\n").encode()


@contextlib.contextmanager
def _serving(exporter: Exporter) -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exporter.page()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not logged."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    exporter.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def process(command: Sequence[str], output: Path) -> Iterator[None]:
    """It runs as long as this lasts."""
    with open(output, "wb") as file:
        process = subprocess.Popen(
            list(command),
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive its caller)
        )
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


def wait_until_ready(port: int, output: Path) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2):
            return
        if time.monotonic() > deadline:
            raise NotProven(f"port {port} was not ready in time:\n{output.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


@contextlib.contextmanager
def watching(folder: Path, stopped: Callable[[], Mapping[int, bool]], api_port: int, token: str) -> Iterator[Exporter]:
    """Prometheus looks at the ranks, and Alertmanager posts to the API at `api_port`, for as long as this lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    exporter = Exporter(stopped)
    prometheus, alertmanager = free_ports(2)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_serving(exporter))
        ports = {"alertmanager": alertmanager, "exporter": exporter.port}
        settings = PROMETHEUS.format(interval=INTERVAL, folder=folder, **ports)
        (folder / "prometheus.yml").write_text(settings)
        (folder / "rules.yml").write_text(RULES.format(alert=ALERT, metric=METRIC))
        (folder / "alertmanager.yml").write_text(ALERTMANAGER.format(api=api_port, token=token))
        commands = {
            "alertmanager": (
                *("prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml"),
                *(f"--storage.path={folder}/alertmanager", f"--web.listen-address=127.0.0.1:{alertmanager}"),
                "--cluster.listen-address=",
            ),
            "prometheus": (
                *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
                f"--web.listen-address=127.0.0.1:{prometheus}",
            ),
        }
        for name, port in (("alertmanager", alertmanager), ("prometheus", prometheus)):
            output = folder / f"{name}.txt"
            stack.enter_context(process(commands[name], output))
            wait_until_ready(port, output)
        yield exporter
