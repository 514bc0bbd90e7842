"""The real fork server, except that it loads no engine: the stand-ins need none."""

import sys

from understudy.training import fork_server

fork_server.preload = lambda: None
fork_server.unfit = lambda: None
fork_server.main(int(sys.argv[1]), sys.argv[2:])
