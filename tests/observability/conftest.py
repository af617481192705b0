"""tools/ is no package of the distribution: its generators are imported from the checkout."""

import sys

from servers import ROOT

sys.path.insert(0, str(ROOT))
