"""Opens the API beside a job, for the commands that run one. What is wrong with its flags is said before it starts."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from understudy.api.address import LeaderAddress, remove_address, write_address
from understudy.api.app import Page, Settings, make_api
from understudy.api.audit import Audit
from understudy.api.job import JobInterface
from understudy.api.last_scrape import Scrapes
from understudy.api.registry import HostEntry
from understudy.api.rules import Rules, read_rules
from understudy.api.server import ApiServer
from understudy.api.tokens import Tokens, read_tokens
from understudy.foundation.ids import HostId
from understudy.ledger.writing import RecordLog
from understudy.plugins import registry
from understudy.plugins.kinds import WEBHOOK
from understudy.wire.certificates import Certificates


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """What the flags ask for, checked. `store_certificates`: those for etcd, whose end is exported, too."""

    address: str
    certificates: Certificates | None
    tokens: Tokens | None
    rules: Rules
    store_certificates: Certificates | None = None

    @staticmethod
    def read(
        address: str, certificates: Certificates | None, tokens_file: Path | None, rules_file: Path | None
    ) -> "ApiRequest":
        return ApiRequest(
            address=address,
            certificates=certificates,
            tokens=None if tokens_file is None else read_tokens(tokens_file),
            rules=Rules() if rules_file is None else read_rules(rules_file),
        )


@contextlib.asynccontextmanager
async def serving(
    request: ApiRequest,
    interface: JobInterface,
    run_dir: Path,
    say: Callable[[str], None],
    audit: RecordLog,
    *,
    pages: Mapping[str, Page] | None = None,
    aliases: Mapping[HostId, tuple[str, ...]] | None = None,
    reached_at: str = "",
    enough: Callable[[], bool] = lambda: False,
) -> AsyncIterator[ApiServer]:
    """`audit`: takes every request. `aliases`: further names of hosts, which monitors may use. `reached_at`: the host
    under which others reach this one. `enough`: the operator does not want to wait for the last scrape."""
    faults: set[str] = set()

    def on_fault(error: Exception) -> None:
        if repr(error) not in faults and len(faults) < 20:
            faults.add(repr(error))
            say(f"a request over HTTP failed by our own fault, the job goes on: {error!r}")

    leader = LeaderAddress(run_dir, lambda: server.url)
    settings = Settings(
        tokens=request.tokens,
        rules=_with_aliases(request.rules, aliases or {}),
        pages=pages or {},
        on_fault=on_fault,
        certificates=request.certificates,
        store_certificates=request.store_certificates,
        leader_url=leader.find,
        webhooks=registry.usable(WEBHOOK, say),
        say=say,
    )
    api = make_api(interface, Audit(audit), settings)
    server = ApiServer(api.app, say, api.metrics.refused)
    await server.open(request.address, request.certificates, reached_at)
    if interface.leads():  # a coordinator writes it when it begins to lead
        write_address(run_dir, server.url)
    try:
        yield server
        interface.event_stream.close()
        await _last_scrape(api.metrics.scrapes, say, enough)
    finally:
        interface.event_stream.close()
        remove_address(run_dir, server.url)
        await server.close()


async def _last_scrape(scrapes: Scrapes, say: Callable[[str], None], enough: Callable[[], bool]) -> None:
    """Only after an orderly end: whatever else happens, a target that is down says the truth."""
    wait = scrapes.seconds_to_wait()
    if wait > 0 and not enough():
        say(f"the job has ended; up to {wait:.0f} s for the monitor that scrapes /metrics to see it")
        await scrapes.one_more(enough)


def _with_aliases(rules: Rules, aliases: Mapping[HostId, tuple[str, ...]]) -> Rules:
    hosts = dict(rules.hosts)
    for host, names in aliases.items():
        known = hosts.get(host, HostEntry(name=host))
        hosts[host] = replace(known, aliases=(*known.aliases, *names))
    return replace(rules, hosts=hosts)
