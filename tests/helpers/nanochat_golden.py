"""Recorded output of nanochat's real loaders (see golden/nanochat_live/README.md)."""

import gzip
import json

from tests.helpers.paths import GOLDEN

EXPECTED = json.loads(gzip.decompress((GOLDEN / "nanochat_live" / "expected.json.gz").read_bytes()))
CASES = EXPECTED["cases"]
