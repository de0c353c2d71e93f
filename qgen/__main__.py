"""`python -m qgen` is the command `qgen`."""

import sys

from qgen.cli import main

sys.exit(main())
