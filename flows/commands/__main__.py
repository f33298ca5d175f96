"""`python -m flows.commands`: the `rstar2` command where the console script is not on the path."""

import sys

from flows.commands import main

sys.exit(main())
