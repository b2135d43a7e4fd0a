"""`python -m clusterenv`: the command line, for hosts where the script is not on the path."""

import sys

from clusterenv.cli.main import main

sys.exit(main())
