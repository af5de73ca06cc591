"""Orders: which sample stands at which position.

    position   index into the endless global order, epochs included
    epoch      position // num_samples
    index      position % num_samples: the place within the epoch
    sample     the sample at that index: a number in the view

An `order` is a bijection between the indices and the samples of every epoch. `shuffling` evaluates
and inverts it in O(1) time and memory. Loaders take it as `shuffle=`: False for the stored order,
True for a global shuffle, `BlockShuffle(block_size)` for storage that needs longer reads,
`LengthBuckets(group_size)` for steps whose rows have similar lengths, or `Bands(num_bands)` for a
curriculum. `digests` add up.

>>> from millstream.order.order import make_order
>>> order = make_order(True, num_samples=10, seed=0)
>>> order.samples_at(range(20)).tolist()
[5, 3, 2, 0, 6, 7, 8, 4, 9, 1, 3, 6, 4, 5, 8, 2, 0, 1, 9, 7]
>>> order.positions_of([7, 3], epoch=1).tolist()
[19, 10]
"""
