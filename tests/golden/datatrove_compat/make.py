"""Makes items.json and the files beside it with the real package: `pip install datatrove`.

Run it only to add cases: what is there pins what users of datatrove got.
"""

import json
import os
from importlib.metadata import version
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CASES = [
    ("file", "data/000.ds", {"seq_len": 31}),
    ("file", "data/000.ds", {"seq_len": 31, "return_positions": True}),
    ("file", "data/000.ds", {"seq_len": 1, "return_positions": True}),
    ("file", "data/000.ds", {"seq_len": 299, "return_positions": True}),
    (
        "file",
        "data/000.ds",
        {"seq_len": 12, "return_positions": True, "positions_from_eos_token_id": 7},
    ),
    ("file", "data/000.ds", {"seq_len": 10, "fsize": 300}),
    ("file", "wide.ds", {"seq_len": 24, "token_size": 4, "return_positions": True}),
    ("folder", "data", {"seq_len": 31, "return_positions": True}),
    ("folder", "data", {"seq_len": 63, "shuffle": True}),
    ("folder", "data", {"seq_len": 63, "shuffle": True, "seed": 3}),
    ("folder", "data", {"seq_len": 63, "filename_pattern": "0[01]?.ds"}),
    ("folder", "data", {"seq_len": 63, "filename_pattern": "**/*.ds"}),
    ("folder", "data", {"seq_len": 63, "filename_pattern": "sub/*.ds", "recursive": False}),
    ("folder", "data", {"seq_len": 63, "filename_pattern": "s*/**/*.ds"}),
]


def main() -> None:
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile
    from datatrove.utils.dataset import DatatroveFileDataset, DatatroveFolderDataset

    os.chdir(HERE)
    rng = np.random.default_rng(0)
    sizes = {"data/000": 620, "data/001": 130, "data/002": 40, "data/010": 200}
    for name, size in {**sizes, "data/sub/003": 150, "wide": 150}.items():
        width = 4 if name == "wide" else 2
        folder, _, stem = name.rpartition("/")
        file = TokenizedFile(
            folder or ".",
            f"{stem}.ds",
            token_size=width,
        )
        while size > 0:
            length = min(size, int(rng.lognormal(2.5, 1)) + 1)
            file.write([*rng.integers(8, 256**width, length - 1).tolist(), 7], None)
            size -= length
        file.close()
    cases = []
    for kind, path, options in CASES:
        make = DatatroveFileDataset if kind == "file" else DatatroveFolderDataset
        dataset = make(path, **options)
        items = [
            {name: tensor.tolist() for name, tensor in dataset[k].items()}
            for k in range(len(dataset))
        ]
        cases.append({"kind": kind, "path": path, "options": options, "items": items})
    (HERE / "paths.json").unlink(missing_ok=True)
    DatatroveFolderDataset("data", 63, paths_file="paths.json")
    (HERE / "paths.json.lock").unlink(missing_ok=True)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    written_by = json.dumps(f"datatrove {version('datatrove')}")
    (HERE / "items.json").write_text(f'{{"written_by": {written_by}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
