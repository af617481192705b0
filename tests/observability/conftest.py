"""tools/ is no package of the distribution: its generators are imported from the checkout. The orchestrator's state is that of tests/protocol."""

import sys

from servers import ROOT

sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "protocol")]
