"""Systems from the papers, for comparison only. They are not part of the wheel, the
ledger or Prefect.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "studies"] and {"-h", "--help"}.isdisjoint(sys.orig_argv[3:]):
    # Printed here and not in __main__, because its imports take seconds.
    print("studies: importing the learners …", file=sys.stderr, flush=True)
