"""Prepare: from a source and a tokenizer to a dataset, in tasks that anybody may run.

    plan     what is to be made: tokenizer, source, options, tasks; the same for all who take part
    task     one slice of the source, which becomes one part of each side of the dataset
    side     what is written: the one dataset, or `train` and `val`
    stage    one kind of tasks: hashing (only to choose validation documents by count),
             tokenizing, shuffling
    runner   who runs tasks: one call of `tokenize`, with worker processes or on Ray

While it is being made, the output directory holds

    plan.json        the plan; whoever finds it does not open this as data
    tasks/           what each task counted, and the locks of those who are at work
    unshuffled/      the dataset before its documents are shuffled

and all of these go when the datasets are there. `report.json` stays.
"""
