"""Topics of stored data: views of tokens and of objects, orders and resumption, foreign formats."""

from tests.helpers.golden_files import GOLDEN
from tests.oracle import views
from tests.oracle.datasets import decode, encode, open_tokens
from tests.oracle.loaders import draw_order, mark_rows, see_run


def windows(case):
    """Windows over documents of any layout."""
    if case.draw.chance(0.15):
        view = views.draw_windows(case, open_tokens(case), case.draw.integer(1, 16), finds_eos=True)
        _see_run_of(case, view)
    else:
        _see_view_and_run(case, open_tokens(case), views.draw_windows)


def packed(case):
    """Packed rows, by every policy."""
    _see_view_and_run(case, open_tokens(case), views.draw_packed)


def documents(case):
    """One document in a row."""
    _see_view_and_run(case, open_tokens(case), views.draw_documents)


def groups(case):
    """Documents that belong together, in rows of their own or packed."""
    data = open_tokens(case, group_size=case.draw.integer(2, 3))
    make = case.draw.one_of(views.draw_packed, views.draw_documents)
    view = make(case, data, case.draw.one_of(16, 32, 48, case.draw.integer(3, 60)))
    _see_run_of(case, views.choose_documents(case, view))


def _see_view_and_run(case, data, draw_view):
    """A view of rows of any length."""
    seq_len = case.draw.one_of(4, 8, 12, 16, case.draw.integer(1, 24))
    _see_run_of(case, views.choose_documents(case, draw_view(case, data, seq_len)))


def _see_run_of(case, view):
    """Some of the samples of a view, by number and in the steps of a run."""
    draw = case.draw
    view = views.choose_samples(case, view)
    if draw.chance(0.2):
        view = view.with_transform(mark_rows)
    views.see_view(case, view)
    if len(view):
        order = draw_order(case, len(view), by_length=getattr(view, "by_length", False))
        see_run(case, view, order)


def datasets(case):
    """What was written is read: records, documents and metadata."""
    data = open_tokens(case)
    case.see("fields", str(data.fields.descr))
    case.see("counts", [data.num_records, data.num_documents, data.group_size])
    case.see("records", data.records(0, data.num_records))
    for number in range(data.num_documents):
        case.see(f"document {number}", data.document(number))
        if data.has_metadata:
            case.see(f"metadata {number}", data.metadata(number, decode))


def files(case):
    """The bytes that a writer writes."""
    open_tokens(case)
    case.see_files(case.directory)


def objects(case):
    """Documents of any bytes, with or without metadata."""
    draw = case.draw
    path, with_metadata = case.new_path(), draw.chance(0.5)
    sizes = [draw.one_of(0, draw.integer(1, 9), draw.integer(1, 300)) for _ in range(1, 25)]
    contents = [bytes(draw.numbers(size, 256).astype("u1")) for size in sizes]
    metadata = [{"rank": draw.integer(0, 9)} for _ in contents] if with_metadata else None
    given = encode if with_metadata else None
    shard_bytes = draw.one_of(1, 200, 1 << 20)
    with case.engine.Writer(path, encode=bytes, metadata=given, shard_bytes=shard_bytes) as writer:
        writer.extend(contents, metadata=metadata)
    options = {"by_size": draw.chance(0.3), "metadata": decode if with_metadata else None}
    if draw.chance(0.7):
        options["decode"] = lambda content: [len(content), bytes(content[:8])]
    if draw.chance(0.3):
        options["collate"] = lambda samples: {"samples": list(samples)}
    case.note("objects", f"{sizes} {options}")
    case.see_files(path)
    view = case.engine.open(path).objects(**options)
    view = views.choose_samples(case, views.choose_documents(case, view))
    views.see_view(case, view)
    if len(view):
        order = draw_order(case, len(view), by_length=options["by_size"])
        see_run(case, view, order, holds_tokens=False)


def rows(case):
    """Rows as they are stored, in the files of batches."""
    draw, path = case.draw, case.new_path()
    shape = {"seq_len": draw.integer(2, 9), "batch_size": draw.integer(1, 3)}
    seed = draw.one_of(None, draw.integer(0, 1000))
    data = open_tokens(case, kind=draw.one_of("narrow", "wide"))
    while data.num_records < shape["seq_len"] * shape["batch_size"]:
        data = open_tokens(case, kind="narrow")
    case.note("rows", f"{shape}, seed {seed}")
    case.engine.convert(data, path, "llmbatch", seed=seed, workers=1, **shape)
    case.see_files(path)
    view = views.choose_samples(case, case.engine.open(path).rows())
    views.see_view(case, view)
    if len(view):
        see_run(case, view, draw_order(case, len(view)))


_FOREIGN = [
    *("arrow/hf_uint16", "arrow/list_int32.arrow", "arrow/list_uint16.parquet"),
    *("arrow/offsets_not_zero.arrow", "arrow/large_list_int64.parquet", "arrow/sliced.arrows"),
    *("datatrove/folder", "datatrove/t2.ds", "datatrove/t4.ds", "datatrove/zero.ds"),
    *("dolma/cli_uint16", "dolma/memmap_uint32.npy", "dolma/olmo_tokens.npy"),
    *("huggingface/completion.parquet", "huggingface/sft_right", "huggingface/large"),
    *("litdata/numpy_uint16", "litdata/torch_int64", "litdata/numpy_uint16_two_workers"),
    *("mds/bytes_int64", "mds/dyn_uint16", "mds/with_id", "mds/zstd_xxh64"),
    *("megatron/dtype_uint16.bin", "megatron/multi.bin", "megatron/merged.bin"),
]


def formats(case):
    """Files that other software wrote, opened in place."""
    draw = case.draw
    name = draw.one_of(*_FOREIGN)
    case.note("format", name)
    data = case.engine.open(GOLDEN / name, access=draw.one_of("pread", "mmap"))
    case.see("fields", str(data.fields.descr))
    case.see("records", data.records(0, data.num_records))
    _see_view_and_run(case, data, draw.one_of(*views.OF_TOKENS))


def conversions(case):
    """Other formats: their bytes, and what is read of them."""
    draw, path = case.draw, case.new_path()
    if draw.chance(0.2):
        name = draw.one_of("datatrove/t2.ds", "mds/dyn_uint16", "megatron/multi.bin")
        case.note("convert", name)
        data = case.engine.open(GOLDEN / name)
    else:
        kind = draw.one_of("narrow", "wide", "masked")
        data = open_tokens(case, kind=kind, group_size=draw.one_of(1, 1, 1, 2))
    to = draw.one_of("datatrove", "megatron", "llmchnk", "llmc", "flat", case.engine.__name__)
    case.note("convert to", to.replace(case.engine.__name__, "our format"))
    report = case.engine.convert(
        data, path, to, shard_bytes=draw.one_of(1, 200, 1 << 20), workers=draw.integer(1, 2)
    )
    case.see("counts", [report.num_records, report.size_bytes])
    case.see_files(path)
    found = case.engine.open(path, eos_id=1 if to in ("llmc", "flat") else None)
    case.see("records", found.records(0, found.num_records))
    case.see("documents", [found.document(number) for number in range(found.num_documents)])
