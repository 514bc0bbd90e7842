"""A coordinator beside this agent: takes a post in the shared folder if one is free, and runs a coordinator process
while it holds it.

The process ends with the agent. One that ends by itself is started again, unless it cannot be started at all.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from understudy.agent.posts import Holder, Post
from understudy.agent.processes import WatchedProcess, signal_name, start_process
from understudy.files.in_thread import answer_within

_BEAT_EVERY = 2.0  # seconds
_DEAD_AFTER = 20.0  # seconds without a heartbeat until another host may take a post
_LOOK_EVERY = (1.0, 10.0)  # seconds between two looks for a free post: at first, and once all were seen to be held
_SPARES_WAIT = 15.0  # seconds: a host with ranks stays longer, as a rule
_ANSWER_TIMEOUT = 5.0  # seconds for the folder
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0  # seconds until a coordinator that ended is started again
_HEALTHY_AFTER = 60.0
_FAREWELL = 40.0  # seconds in which a coordinator ends after its job; it waits for other hosts no longer than that
_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_WRONG_FLAGS = 2


class CoordinatorBeside:
    """`command`: the coordinator's. `eager` False: take only what other hosts have left free for a while."""

    def __init__(
        self,
        posts: Sequence[Post],
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        host: str,
        eager: bool,
        say: Callable[[str], None],
    ) -> None:
        self._posts, self._command, self._environment = list(posts), tuple(command), environment
        self._host, self._say = host, say
        self._agent = secrets.token_hex(8)
        self._post: Post | None = None
        self._may_take_from = time.monotonic() + (0.0 if eager else _SPARES_WAIT)
        self._seen: dict[int, tuple[tuple[int, bytes], float]] = {}  # of each post: its state, and since when
        self._first_look = True
        self.process: WatchedProcess | None = None
        self._ended = asyncio.Event()
        self._start_next, self._delay, self._started_at = 0.0, _FIRST_DELAY, 0.0
        self._closed = self._unfit = False
        self._troubled = False
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._posts:
            self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while not self._unfit and not self._closed:
            try:
                pause = await (self._seek() if self._post is None else self._hold(self._post))
                self._troubled = False
            except (OSError, TimeoutError) as error:  # the folder may be away for a while
                if not self._troubled:
                    self._say(f"posts of coordinators cannot be seen, trying again: {error or 'no answer in time'}")
                self._troubled = True
                pause = _BEAT_EVERY
            await asyncio.sleep(pause)

    # -- without a post -----------------------------------------------------------------------------------------------

    async def _seek(self) -> float:
        """Returns how long to wait until the next look."""
        free = await answer_within(_ANSWER_TIMEOUT, self._look_for_free)
        if free is not None:
            place, after = free
            if await answer_within(_ANSWER_TIMEOUT, partial(self._take, self._posts[place], after)):
                self._post, self._start_next = self._posts[place], 0.0
                self._say(f"this host runs coordinator {place + 1} of {len(self._posts)}")
                return 0.0
        all_held = len(self._seen) == len(self._posts) and time.monotonic() > self._may_take_from
        return _LOOK_EVERY[all_held] * random.uniform(0.5, 1.0)

    def _look_for_free(self) -> tuple[int, int] | None:
        now, first_look = time.monotonic(), self._first_look
        self._first_look = False
        for place, post in enumerate(self._posts):
            number, holder = post.look()
            if holder is None:
                if now >= self._may_take_from:
                    return place, number
            elif (first_look and holder.host == self._host) or self._is_dead(place, post, number, holder, now):
                return place, number
        return None

    def _is_dead(self, place: int, post: Post, number: int, holder: Holder, now: float) -> bool:
        """By this host's own clock."""
        state = number, post.heartbeat(holder)
        if place not in self._seen or self._seen[place][0] != state:
            self._seen[place] = state, now
        return now - self._seen[place][1] >= _DEAD_AFTER

    def _take(self, post: Post, after: int) -> bool:
        taken = post.take(after, self._host, self._agent)
        if taken:
            post.beat(self._agent, 0)
        return taken

    # -- with a post --------------------------------------------------------------------------------------------------

    async def _hold(self, post: Post) -> float:
        if self._closed:
            return 0.0
        if (self.process is None or not self.process.alive) and time.monotonic() >= self._start_next:
            self._start()
        self._count += 1
        if not await answer_within(_ANSWER_TIMEOUT, partial(self._beat, post)):
            self._say("another host has taken the post of this host's coordinator, which ends")
            self._post = None
            await self._end_process()
        return _BEAT_EVERY if self._delay > _BEAT_EVERY else self._delay

    def _beat(self, post: Post) -> bool:
        """False: the post is another agent's."""
        post.beat(self._agent, self._count)
        _, holder = post.look()
        return holder is not None and holder.agent == self._agent

    def _start(self) -> None:
        self._ended.clear()
        self._started_at = time.monotonic()
        self.process = start_process(self._command, environment=self._environment, on_exit=self._on_exit)

    def _on_exit(self, code: int) -> None:
        self._ended.set()
        if self._closed or self._post is None:
            return
        if code == _WRONG_FLAGS:
            self._unfit = True
            self._say("this host cannot run a coordinator (its reason is above); other hosts may")
            return
        if time.monotonic() - self._started_at > _HEALTHY_AFTER:
            self._delay = _FIRST_DELAY
        how = f"ended with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"
        self._say(f"the coordinator on this host {how}; it is started again in {self._delay:g} s")
        self._start_next = time.monotonic() + self._delay
        self._delay = min(self._delay * 2, _LONGEST_DELAY)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self, *, leaves: bool, hurried: Callable[[], bool]) -> None:
        """`leaves`: this host goes, and the job goes on without it. Else the coordinator ends with the job, once it has
        told all hosts."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        deadline = time.monotonic() + _FAREWELL
        while not leaves and self._alive() and not hurried() and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 0.2)
        await self._end_process()
        if self._post is not None:
            with contextlib.suppress(OSError, TimeoutError):
                await answer_within(1.0, partial(self._post.give_up, self._agent))

    def _alive(self) -> bool:
        return self.process is not None and self.process.alive

    async def _end_process(self) -> None:
        if self.process is None or not self.process.alive:
            return
        self.process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _GRACE)
        if self.process.alive:
            self.process.kill_and_wait()
