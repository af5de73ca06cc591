"""Tokenizing: from a source and a tokenizer to a dataset, in tasks that any process may run.

    plan     what to make: tokenizer, source, options, tasks; the same for all runners
    task     one slice of the source, which becomes one part of each side of the dataset
    side     a dataset that is written: the only one, or `train` and `val`
    stage    tasks of one kind: hashing (only for a split by count), tokenizing, shuffling
    runner   a call of `tokenize`, which runs tasks in worker processes or on Ray

`tokenizing.py` begins a job and `finishing.py` ends it. Until then the output directory holds

    plan.json        the plan; a directory that has one is not opened as data
    tasks/           the counts of each task, and the locks of the runners
    unshuffled/      the dataset before its documents are shuffled

which are removed when the datasets are finished. `report.json` stays.
"""
