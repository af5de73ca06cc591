"""What nanochat's real loaders gave (golden/nanochat_live/README.md says which and how)."""

import gzip
import json

from tests.helpers.paths import GOLDEN

EXPECTED = json.loads(gzip.decompress((GOLDEN / "nanochat_live" / "expected.json.gz").read_bytes()))
CASES = EXPECTED["cases"]
