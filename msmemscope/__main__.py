"""`python -m msmemscope` is the command `msmemscope`."""

import sys

from msmemscope.cli.main import main

sys.exit(main())
