"""Random views of a dataset, and random samples among theirs."""

from tests.oracle.datasets import EOS, decode

EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")


def see_view(case, view):
    """The length of a view, and some samples by their numbers."""
    case.see("samples", len(view))
    if len(view):
        numbers = [case.draw.integer(0, len(view) - 1) for _ in range(3)]
        case.see(f"rows {numbers}", view.read(numbers))
        case.see(f"sample {numbers[0]}", view[numbers[0]])


def draw_common(case, data):
    """Options that all views of tokens take."""
    draw = case.draw
    options = {}
    if draw.chance(0.6):
        options["extras"] = draw.some_of(*EXTRAS)
        options["static_shapes"] = "cu_seqlens" in options["extras"] and draw.chance(0.25)
    if draw.chance(0.2):
        options["loss_mask"] = False
    if data.has_metadata and draw.chance(0.6):
        options["metadata"] = decode
    return options


def draw_windows(case, data, seq_len, *, finds_eos=False):
    """Windows, with `finds_eos` of documents that an end-of-text token ends."""
    draw, options = case.draw, draw_common(case, data)
    options |= {"overlap": draw.chance(0.7), "mask_ends": draw.chance(0.4)}
    if finds_eos and "document_ids" not in options.get("extras", ()):
        options["eos_id"] = EOS
    case.note("windows", f"{seq_len} {options}")
    return data.windows(seq_len, **options)


def draw_packed(case, data, seq_len):
    draw, options = case.draw, draw_common(case, data)
    options["policy"] = "best_fit"
    if data.group_size == 1:
        options["policy"] = draw.one_of("best_fit", "bos_best_fit", "bos_best_fit_keep")
    if options["policy"] != "best_fit":
        options["buffer_size"] = draw.integer(1, 40)
    elif draw.chance(0.6):
        rules = ("truncate", "drop") if data.group_size > 1 else ("split", "truncate", "drop")
        options["overflow"] = draw.one_of(*rules)
    if draw.chance(0.3):
        options["mask_ends"] = draw.chance(0.5)
    if draw.chance(0.3):
        options["pad_id"] = draw.integer(0, 11)
    case.note("packed", f"{seq_len} {options}")
    view = data.packed(seq_len, **options)
    _see_report(case, view)
    return view


def draw_documents(case, data, seq_len):
    draw, options = case.draw, draw_common(case, data)
    rules = ("truncate", "drop") if data.group_size > 1 else ("split", "truncate", "drop")
    options |= {"overflow": draw.one_of(*rules), "by_length": draw.chance(0.3)}
    options |= {"attention_mask": draw.chance(0.8), "pad_id": draw.one_of(0, 0, 5)}
    if draw.chance(0.4):
        options["pad_to"] = draw.one_of(1, 4, 8)
    case.note("documents", f"{seq_len} {options}")
    view = data.documents(seq_len, **options)
    _see_report(case, view)
    return view


OF_TOKENS = (draw_windows, draw_packed, draw_documents)


def _see_report(case, view):
    report = view.report
    names = ("num_rows", "padding", "num_split", "cropped", "lost", "num_dropped", "dropped")
    case.see("report", {name: getattr(report, name) for name in names})


def choose_documents(case, view):
    """The view without some documents, or a part of a split; most often the view itself."""
    draw, data = case.draw, view.dataset
    for _ in range(draw.one_of(0, 0, 1, 1, 2)):
        ways = ["numbers", *("every", "first", "folds") * (data.num_documents > 12)]
        if data.has_metadata and data.group_size == 1:
            ways += ["metadata"] * len(ways)
        way = draw.one_of(*ways)
        case.note("choose documents by", way)
        if way == "numbers":
            groups = range(data.num_documents // data.group_size)
            left_out = [group for group in groups if draw.chance(0.3)]
            size = data.group_size
            documents = [group * size + k for group in left_out for k in range(size)]
            view = view.without(documents=documents)
        elif way == "metadata":
            limit = draw.integer(1, 60)
            view = view.without(documents=lambda spans, limit=limit: len(str(spans)) > limit)
        else:
            options = {
                "every": {"every": draw.integer(2, 6)},
                "first": {"first": draw.one_of(0.1, 0.3, 0.5)},
                "folds": {"folds": 3, "fold": draw.integer(0, 2)},
            }[way]
            view = view.split(**options)[draw.integer(0, 1)]
    return view


def may_be_sorted(view):
    """Whether a view may be sorted: its documents have numbers, and it is not sorted by length."""
    names = ("eos_id", "by_length", "by_size")
    return not any(getattr(view, name, False) for name in names)


def choose_samples(case, view):
    """A slice of the view, or all of it in another order; most often the view itself."""
    draw, data = case.draw, view.dataset
    for _ in range(draw.one_of(0, 0, 1, 1, 2)):
        ways = ("take", "slice", "sorted_by", "length")
        way = draw.one_of(*(ways if may_be_sorted(view) else ways[:2]))
        case.note("choose samples by", way)
        if way == "sorted_by":
            view = view.sorted_by(draw.numbers(data.num_documents, 20))
        elif way == "length":
            view = view.sorted_by("length")
        elif way == "take":
            view = view.take(draw.integer(min(1, len(view)), len(view)))
        else:
            start = draw.integer(0, len(view) // 3)
            view = view.slice(start, draw.one_of(None, -1, len(view) - start // 2))
    return view
