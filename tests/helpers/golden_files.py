"""Files written by the real software, and what is in them; see golden/formats/README.md."""

import json

from tests.helpers import paths

GOLDEN = paths.GOLDEN / "formats"
EXPECTED = {
    f"{folder.name}/{name}": entry
    for folder in sorted(GOLDEN.iterdir())
    if folder.is_dir()
    for name, entry in json.loads((folder / "expected.json").read_text()).items()
}


def path_of(name):
    places = [GOLDEN / name, *(GOLDEN / f"{name}{suffix}" for suffix in (".bin", ".ds", ".npy"))]
    return next(place for place in places if place.exists())
