"""A stand-in for NVIDIA's DCGM exporter: serves made-up counters of devices, or misbehaves as real servers do."""

import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

_HOLD = 30.0  # seconds for which a silent server keeps a connection


def page_of(devices: Mapping[int, Mapping[str, float]]) -> str:
    """Prometheus' text, as the exporter writes it. Device number -> metric -> value."""
    lines = []
    for metric in sorted({metric for numbers in devices.values() for metric in numbers}):
        lines += [f"# HELP {metric} made up", f"# TYPE {metric} gauge"]
        for index, numbers in devices.items():
            if metric in numbers:
                labels = f'gpu="{index}",UUID="{uuid_of(index)}",device="nvidia{index}",modelName="NVIDIA H100"'
                lines.append(f'{metric}{{{labels},Hostname="host",DCGM_FI_DRIVER_VERSION="550"}} {numbers[metric]:g}')
    return "\n".join(lines) + "\n"


def uuid_of(index: int) -> str:
    return f"GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd"


class FakeExporter:
    """`devices` may be changed while it serves. `silent`: it accepts and does not answer."""

    def __init__(self, devices: dict[int, dict[str, float]]) -> None:
        self.devices = devices
        self.silent = False
        self.status = 200
        self.asked = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.asked += 1
                if exporter.silent:
                    time.sleep(_HOLD)
                    return
                content = page_of(exporter.devices).encode()
                self.send_response(exporter.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/metrics"

    def __enter__(self) -> "FakeExporter":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
