"""The real nursery, except that it loads no engine: the stand-ins need none."""

import sys

from understudy.training import nursery

nursery.preload = lambda: None
nursery.unfit = lambda: None
nursery.main(int(sys.argv[1]), sys.argv[2:])
