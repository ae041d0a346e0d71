"""Systems of the papers that can be compared and are not released: outside of the wheel, the ledger
and Prefect.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "studies"] and {"-h", "--help"}.isdisjoint(sys.orig_argv[3:]):
    # Here, and not in __main__: what it imports takes seconds.
    print("studies: importing the learners …", file=sys.stderr, flush=True)
