"""Makes this folder with Hugging Face datasets: python make.py (needs `pip install datasets`).

What the documents and masks have to be is computed here, row by row, in plain Python.
"""

import json
import random
import shutil
from pathlib import Path

import datasets

HERE = Path(__file__).parent
IGNORED = -100
EXPECTED = {}


def rows(seed, *, pad="", width=24, prompt=True, count=14):
    """Rows as a tokenizer and a collator leave them: ids, padding, and labels of the answer."""
    chance = random.Random(seed)
    for number in range(count):
        length = (
            chance.choice([0, 1, 2, width, *range(3, width)]) if pad else chance.randrange(width)
        )
        ids = [chance.randrange(3, 32_000) for _ in range(length)]
        first = chance.randrange(length + 1) if prompt else 0
        labels = [IGNORED] * first + ids[first:]
        num_pads = (width - length) if pad else 0
        pads = {"right": (0, num_pads), "left": (num_pads, 0), "": (0, 0)}[pad]
        yield {
            "input_ids": [2] * pads[0] + ids + [2] * pads[1],
            "attention_mask": [0] * pads[0] + [1] * length + [0] * pads[1],
            "labels": [IGNORED] * pads[0] + labels + [IGNORED] * pads[1],
            "messages": [{"role": "user", "content": f"question {number}"}],
            "source": f"https://example.org/{number}",
        }


def documents(table):
    """The tokens that are not padding, and whether each is to be trained on."""
    found, masks = [], []
    for row in table:
        kept = [k for k, one in enumerate(row.get("attention_mask", row["input_ids"])) if one]
        kept = kept if "attention_mask" in row else range(len(row["input_ids"]))
        found.append([row["input_ids"][k] for k in kept])
        if "labels" in row:
            masks.append([int(row["labels"][k] != IGNORED) for k in kept])
        elif "completion_mask" in row:
            masks.append([row["completion_mask"][k] for k in kept])
    return {"documents": found} | ({"loss_mask": masks} if masks else {})


def save(name, table, how, save_it, **more):
    if (HERE / name).is_dir():
        shutil.rmtree(HERE / name)
    save_it(table, HERE / name)
    EXPECTED[name] = {
        "written_by": f"datasets {datasets.__version__}",
        "how": how,
        "dtype": table.features["input_ids"].feature.dtype,
        **({"documents": None} if "refuse" in more else documents(table)),
        **more,
    }


def to_disk(table, path, **options):
    datasets.Dataset.save_to_disk(table, str(path), **options)


def two_shards(table, path):
    to_disk(table, path, num_shards=2)


def to_parquet(table, path):
    table.to_parquet(str(path), batch_size=5)


def main():
    make = datasets.Dataset.from_list
    sft = make(list(rows(0, pad="right")))
    how = "from_list of ids, attention_mask and labels padded on the right, messages, source"
    save("sft_right", sft, f"{how}; save_to_disk", to_disk)
    save("sft_right.parquet", sft, f"{how}; to_parquet", to_parquet)
    left = make(list(rows(1, pad="left")))
    save("sft_left", left, "padded on the left; save_to_disk(num_shards=2)", two_shards)
    mapped = make([{"n": n} for n in range(14)]).map(
        lambda row: list(rows(2))[row["n"]], remove_columns=["n"]
    )
    save("mapped", mapped, "made by map; no padding; save_to_disk", to_disk)
    plain = mapped.remove_columns(["labels"])
    save("no_labels", plain, "the same without labels; save_to_disk", to_disk)
    trl = [
        {
            "input_ids": row["input_ids"],
            "completion_mask": [int(label != IGNORED) for label in row["labels"]],
            "seq_lengths": [len(row["input_ids"])],
        }
        for row in rows(3)
    ]
    save("completion.parquet", make(trl), "TRL's columns; to_parquet", to_parquet)
    selected = sft.select([9, 2, 2, 11, 0])
    save("selected", selected, "select, save_to_disk", to_disk)
    large = sft.cast_column("input_ids", datasets.LargeList(datasets.Value("uint16")))
    save("large", large, "cast to LargeList(uint16); save_to_disk", to_disk)
    shifted = sft.map(lambda row: {"labels": [*row["labels"][1:], IGNORED]})
    why = "labels are shifted"
    save("shifted", shifted, "labels[1:]; save_to_disk", to_disk, refuse=why)
    holes = sft.map(lambda row: {"attention_mask": [k % 2 for k in range(24)]})
    why = "the attention mask has holes"
    save("holes.parquet", holes, "zeros between ones; to_parquet", to_parquet, refuse=why)
    lines = ",\n".join(
        f'"{name}": {json.dumps(entry, separators=(",", ":"))}' for name, entry in EXPECTED.items()
    )
    (HERE / "expected.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
