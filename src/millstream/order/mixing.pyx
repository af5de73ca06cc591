"""Which source and which of its samples each position of a mixture holds, outside the GIL.

A tree of branches (see `branches.pxd`) divides the positions of a stage among the sources. It is
a Huffman tree: a position passes log2 of the number of sources on average, or fewer.

At every branch, the count of a side is less than one away from its share. That error reaches a
source below multiplied by the source's part of the side. In a Huffman tree, a node has at most half
of its grandparent, so that all errors together are less than 1 + 1 + 1/2 + 1/2 + 1/4 + … = 4,
for any number of sources and any weights. With two sources there is one branch, and the bound is 1.
A ramp (see `ramps.pxd`) divides positions between an old and a new tree, and adds less than three:
one for the first half, and two for the second, which is counted from its end.

Stages follow each other. A later one changes nothing before its start: it has keys of its own, and
goes on with the samples that the sources have left.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc

from millstream.order.branches cimport Branch, RareCount
from millstream.order.ramps cimport count_new, prepare_ramp
from millstream.order.share_trees cimport (
    NO_LEAF,
    Pick,
    Tree,
    TreeBuilder,
    ascend,
    build_tree,
    count_source,
    descend,
)
from millstream.order.shuffling cimport FOR_MIXTURE, FOR_RAMP
from millstream.order.threefry cimport WordPair, threefry

cdef enum:
    MAX_SOURCES = 1 << 20

FAR = <int64_t>1 << 61
MAX_POSITION = FAR
"""positions of mixtures are less than this"""
DENOMINATOR = 10**18
"""what the shares of all sources add up to"""


cdef class MixtureTable:
    """The stages of a mixture; those that were added are never changed."""

    def __cinit__(self, int64_t num_sources, uint64_t seed):
        if not 0 < num_sources <= MAX_SOURCES:
            raise ValueError(f"a mixture has 1 to {MAX_SOURCES:,} sources")
        self.num_sources, self.seed = num_sources, seed

    def __dealloc__(self):
        cdef int64_t k
        for k in range(self.num_stages):
            free_stage(&self.stages[k])
        free(self.stages)

    def add_stage(
        self,
        int64_t start,
        const uint64_t[::1] shares,
        const uint64_t[::1] new_shares=None,
        *,
        int64_t ramp_start=0,
        int64_t ramp_length=0,
    ):
        """From `start` on, divide positions by `shares`, which add up to `DENOMINATOR`.

        With a ramp, which started at `ramp_start`, positions pass from these to `new_shares`.
        """
        cdef MixtureStage stage
        cdef MixtureStage *stages
        cdef int64_t last = self.stages[self.num_stages - 1].start if self.num_stages else -1
        if self.is_in_use:
            raise ValueError("a state points to the stages; no more can be added")
        if not last < start < FAR or (last < 0 and start):
            raise ValueError("stages start at position 0, and ascend")
        if (new_shares is None) != (ramp_length == 0):
            raise ValueError("a ramp has new shares and a length")
        if ramp_length and not (
            0 < ramp_length < <int64_t>1 << 48 and 0 <= start - ramp_start < ramp_length
        ):
            raise ValueError("the stage does not start inside of its ramp")
        stages = <MixtureStage *>realloc(
            self.stages, (self.num_stages + 1) * sizeof(MixtureStage)
        )
        if not stages:
            raise MemoryError
        self.stages = stages
        start_stage(&stage, start)
        stage.taken = <int64_t *>calloc(self.num_sources, sizeof(int64_t))
        try:
            if not stage.taken:
                raise MemoryError
            self.make_tree(&stage.trees[0], shares, (start, 0))
            if new_shares is not None:
                self.make_tree(&stage.trees[1], new_shares, (start, 1))
                add_ramp(&stage, self.seed, ramp_start, ramp_length)
        except BaseException:
            free_stage(&stage)
            raise
        if self.num_stages:
            count_all(&stages[self.num_stages - 1], self.num_sources, start, stage.taken)
        stages[self.num_stages] = stage
        self.num_stages += 1

    cdef int make_tree(self, Tree *tree, const uint64_t[::1] shares, object key) except -1:
        """Make a tree: join the two with the smallest shares, again and again."""
        cdef WordPair words = threefry(self.seed, FOR_MIXTURE, key[0], key[1])
        cdef TreeBuilder builder
        cdef int32_t source
        if shares.shape[0] != self.num_sources or sum(shares) != DENOMINATOR:
            raise ValueError("expected a share of each source, of the fixed denominator together")
        builder = TreeBuilder(tree, words.first, words.second, &shares[0], NULL, 0, 0, 0, 0)
        tree.branches = <Branch *>calloc(self.num_sources, sizeof(Branch))
        tree.parents = <int32_t *>malloc(self.num_sources * sizeof(int32_t))
        tree.leaf_parents = <int32_t *>malloc(self.num_sources * sizeof(int32_t))
        builder.leaves = <int32_t *>malloc(self.num_sources * sizeof(int32_t))
        if not (tree.branches and tree.parents and tree.leaf_parents and builder.leaves):
            free(builder.leaves)
            raise MemoryError
        for source in range(<int32_t>self.num_sources):
            tree.leaf_parents[source] = NO_LEAF
        # Sorting is stable: of equal shares, the first source comes first.
        share_of = list(shares).__getitem__
        for source in sorted(filter(share_of, range(self.num_sources)), key=share_of):
            builder.leaves[builder.num_leaves] = source
            builder.num_leaves += 1
        with nogil:
            build_tree(&builder)
        free(builder.leaves)
        return 0

    def counts_at(self, int64_t position, int64_t[::1] counts):
        """Fill in how many samples of each source come before a position."""
        if counts.shape[0] != self.num_sources or not 0 <= position <= FAR or not self.num_stages:
            raise ValueError("expected a count for each source, and a position from 0 on")
        with nogil:
            count_all(self.stages + self.find(position), self.num_sources, position, &counts[0])

    cdef int64_t find(self, int64_t position) noexcept nogil:
        return find_stage(self.stages, self.num_stages, position)

    def locate(
        self, const int64_t[::1] positions, int64_t[::1] sources, int64_t[::1] numbers
    ):
        """Fill in the source of each position, and which of its samples it is."""
        cdef Py_ssize_t k
        cdef Pick pick
        if not positions.shape[0] == sources.shape[0] == numbers.shape[0] or not self.num_stages:
            raise ValueError("positions, sources and numbers differ in number")
        for k in range(positions.shape[0]):
            if not 0 <= positions[k] < FAR:
                raise ValueError(f"there is no position {positions[k]}")
        with nogil:
            for k in range(positions.shape[0]):
                pick = pick_at(self.stages, self.num_stages, positions[k])
                sources[k], numbers[k] = pick.source, pick.number

    def first_to_reach(self, const int64_t[::1] limits):
        """Return the first position after which a source has reached its limit, and the source.

        A limit of -1 means none. The source is -1 if no source reaches its limit.
        """
        cdef int64_t position = FAR, source = -1, here, k
        if limits.shape[0] != self.num_sources or not self.num_stages:
            raise ValueError("expected a limit for each source")
        with nogil:
            for k in range(self.num_sources):
                if limits[k] > 0:
                    here = self.find_position(k, limits[k] - 1)
                    if 0 <= here < position:
                        position, source = here, k
        return position + 1, source

    def positions_of(
        self, int64_t source, const int64_t[::1] numbers, int64_t[::1] positions
    ):
        """Fill in where samples of a source come; -1 for those that never do."""
        cdef Py_ssize_t k
        if positions.shape[0] != numbers.shape[0] or not self.num_stages:
            raise ValueError("positions and numbers differ in number")
        if not 0 <= source < self.num_sources:
            raise ValueError(f"there is no source {source}")
        for k in range(numbers.shape[0]):
            if numbers[k] < 0:
                raise ValueError(f"there is no sample {numbers[k]}")
        with nogil:
            for k in range(numbers.shape[0]):
                positions[k] = self.find_position(source, numbers[k])

    cdef int64_t find_position(self, int64_t source, int64_t number) noexcept nogil:
        """Return where a sample of a source comes, or -1."""
        cdef int64_t first = 0, end = self.num_stages, middle, index, limit = FAR
        cdef const MixtureStage *stage
        while end - first > 1:
            middle = (first + end) // 2
            if self.stages[middle].taken[source] <= number:
                first = middle
            else:
                end = middle
        stage = &self.stages[first]
        if first + 1 < self.num_stages:
            limit = self.stages[first + 1].start
        index = index_in_stage(stage, source, number - stage.taken[source], limit - stage.start)
        return -1 if index < 0 else stage.start + index


cdef void start_stage(MixtureStage *stage, int64_t start) noexcept:
    cdef int k
    stage.start, stage.taken = start, NULL
    stage.ramp.length = stage.ramp_index = stage.new_before = 0
    for k in range(2):
        stage.trees[k].branches = NULL
        stage.trees[k].parents = stage.trees[k].leaf_parents = NULL


cdef void free_stage(MixtureStage *stage) noexcept:
    cdef int k
    for k in range(2):
        free(stage.trees[k].branches)
        free(stage.trees[k].parents)
        free(stage.trees[k].leaf_parents)
    free(stage.taken)


cdef void add_ramp(
    MixtureStage *stage, uint64_t seed, int64_t ramp_start, int64_t length
) noexcept:
    cdef WordPair words
    cdef int half
    stage.ramp.length, stage.ramp_index = length, stage.start - ramp_start
    for half in range(2):
        words = threefry(seed, FOR_RAMP, <uint64_t>ramp_start, half)
        stage.ramp.keys[half][0], stage.ramp.keys[half][1] = words.first, words.second
    prepare_ramp(&stage.ramp)
    stage.new_before = count_new(&stage.ramp, stage.ramp_index).before


cdef int64_t find_stage(
    const MixtureStage *stages, int64_t num_stages, int64_t position
) noexcept nogil:
    """Return the number of the stage of a position."""
    cdef int64_t first = 0, end = num_stages, middle
    while end - first > 1:
        middle = (first + end) // 2
        if stages[middle].start <= position:
            first = middle
        else:
            end = middle
    return first


# How many indices of a stage before one belong to each of its trees; and its own tree.
cdef struct TreeCounts:
    uint64_t of_tree[2]
    int tree


cdef inline TreeCounts count_trees(const MixtureStage *stage, uint64_t index) noexcept nogil:
    cdef TreeCounts counts
    cdef RareCount found
    counts.of_tree[0], counts.of_tree[1], counts.tree = index, 0, 0
    if stage.ramp.length:
        found = count_new(&stage.ramp, stage.ramp_index + index)
        counts.of_tree[1] = found.before - stage.new_before
        counts.of_tree[0] -= counts.of_tree[1]
        counts.tree = found.is_rare
    return counts


cdef int64_t count_in_stage(
    const MixtureStage *stage, int64_t source, uint64_t index
) noexcept nogil:
    """Return how many of the indices of a stage before one belong to a source."""
    cdef TreeCounts counts = count_trees(stage, index)
    cdef uint64_t count = count_source(&stage.trees[0], source, counts.of_tree[0])
    if stage.ramp.length:
        count += count_source(&stage.trees[1], source, counts.of_tree[1])
    return <int64_t>count


cdef void count_all(
    const MixtureStage *stage, int64_t num_sources, int64_t position, int64_t *counts
) noexcept nogil:
    """Fill in how many samples of each source come before a position of a stage, or its end."""
    cdef int64_t source
    for source in range(num_sources):
        counts[source] = stage.taken[source] + count_in_stage(
            stage, source, <uint64_t>(position - stage.start)
        )


cdef int64_t index_in_stage(
    const MixtureStage *stage, int64_t source, int64_t number, int64_t length
) noexcept nogil:
    """Return the index of a stage of some length that is the number-th of a source, or -1."""
    cdef int64_t low = 0, high = length, middle
    if number >= FAR:
        return -1
    if not stage.ramp.length:
        low = ascend(&stage.trees[0], source, <uint64_t>number)
        return low if low < length else -1
    high = min(high, <int64_t>(stage.ramp.length - stage.ramp_index))
    if count_in_stage(stage, source, <uint64_t>high) <= number:
        return -1
    while high - low > 1:
        middle = low + (high - low) // 2
        if count_in_stage(stage, source, <uint64_t>middle) <= number:
            low = middle
        else:
            high = middle
    return low


cdef Pick pick_at(
    const MixtureStage *stages, int64_t num_stages, int64_t position
) noexcept nogil:
    """Return what a position holds."""
    cdef const MixtureStage *stage = &stages[find_stage(stages, num_stages, position)]
    cdef TreeCounts counts = count_trees(stage, <uint64_t>(position - stage.start))
    cdef int other = 1 - counts.tree
    cdef Pick pick = descend(&stage.trees[counts.tree], counts.of_tree[counts.tree])
    if stage.ramp.length:
        pick.number += <int64_t>count_source(
            &stage.trees[other], pick.source, counts.of_tree[other]
        )
    pick.number += stage.taken[pick.source]
    return pick
