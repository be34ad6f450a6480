"""`python -m eqsat.explain` is the command eqsat-explain."""

import sys

from eqsat.explain.command import main

sys.exit(main())
