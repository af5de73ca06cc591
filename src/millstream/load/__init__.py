"""Loading: walk the positions, read ahead, hand out batches in order.

    step      one batch on every rank: batch_size * ranks positions; or several, which together are
              the positions of a global batch size
    plan      where each step starts and ends, and how many of its rows are this rank's
    walk      the position of a loader, and the batches from there on
    pool      lends the memory of a batch for as long as anybody holds the batch or a view of it

`plan` is arithmetic, with `batch_sizes` where the user gives the sizes of steps, `step_queue` has
threads read steps ahead, `batch_memory` lends memory, `batch_maker` makes batches of it, `tensors`
knows torch, and `loader` puts them together. `thread_counts` says how many threads, and how far
ahead, by default. `base_loader` is what `Loader` shares with `text.live.loader.TextLoader`.
"""
