"""Loading: walk the positions, read ahead, hand out batches in order.

    step      one batch on every rank: batch_size * ranks positions
    plan      where each step starts and ends, and how many of its rows are this rank's
    ticket    a step and the memory to read it into, sent to a reading thread
    lease     a batch's memory while anybody holds the batch or a view of it

`plan` is arithmetic, `prefetch` moves tickets through pipes to threads that live in `kernels`,
`buffers` lends memory, `tensors` knows torch, and `loader` puts them together.
"""
