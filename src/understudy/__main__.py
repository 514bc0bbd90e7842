"""`python -m understudy` is the same as `understudy`."""

import sys

from understudy.cli.main import main

sys.exit(main())
