"""Trees of branches, which divide indices among sources by their shares.

They are Huffman trees: the two smallest shares are joined, again and again.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

from millstream.order.branches cimport Branch, RareCount, count_rare, other_index, rare_index
from millstream.order.threefry cimport WordPair, threefry
from millstream.order.wide_integers cimport wide

cdef enum:
    NO_LEAF = -2
    MAX_DEPTH = 128  # over shares of 10^18, trees are at most 88 deep

# Divides indices among sources.
cdef struct Tree:
    Branch *branches
    int32_t *parents  # of branches; -1 for the root
    int32_t root  # a branch, or ~number of the only source
    int32_t *leaf_parents  # the branch above each source: -1 for the root, NO_LEAF for no share

# What an index or a position holds.
cdef struct Pick:
    int64_t source
    int64_t number  # how many indices of the same source come before

# What it takes to make a tree. Branches are made with ascending shares, so both kinds of children
# wait in the order of their shares.
cdef struct TreeBuilder:
    Tree *tree
    uint64_t key0
    uint64_t key1
    const uint64_t *shares
    int32_t *leaves  # sources with a share, ascending
    int32_t num_leaves
    int32_t next_leaf
    int32_t num_branches
    int32_t next_branch


cdef inline int32_t take_smallest(
    TreeBuilder *builder, int32_t parent, uint64_t *share
) noexcept nogil:
    """Take the leaf or branch with the smallest share as a child of `parent`."""
    cdef const Branch *branches = builder.tree.branches
    cdef int32_t leaf, branch
    if builder.next_leaf < builder.num_leaves:
        leaf = builder.leaves[builder.next_leaf]
        if builder.next_branch == builder.num_branches or (
            builder.shares[leaf] <= branches[builder.next_branch].total
        ):
            builder.next_leaf += 1
            builder.tree.leaf_parents[leaf] = parent
            share[0] = builder.shares[leaf]
            return ~leaf
    branch = builder.next_branch
    builder.next_branch += 1
    builder.tree.parents[branch] = parent
    share[0] = branches[branch].total
    return branch


cdef inline void build_tree(TreeBuilder *builder) noexcept nogil:
    """Make all branches of a tree."""
    cdef uint64_t share = 0
    cdef int32_t number
    cdef Branch *branch
    cdef WordPair words
    for number in range(builder.num_leaves - 1):
        branch = &builder.tree.branches[number]
        branch.rare_child = take_smallest(builder, number, &branch.rare)
        branch.other_child = take_smallest(builder, number, &share)
        branch.total = branch.rare + share
        branch.scale = <uint64_t>((<wide>branch.rare << 64) // branch.total)
        branch.inverse = <uint64_t>min((<wide>1 << 64) // branch.rare, (<wide>1 << 64) - 1)
        branch.remainder = branch.total % branch.rare
        words = threefry(builder.key0, builder.key1, <uint64_t>number, 0)
        branch.keys[0], branch.keys[1] = words.first, words.second
        builder.num_branches += 1
    builder.tree.root = take_smallest(builder, -1, &share)


cdef inline Pick descend(const Tree *tree, uint64_t index) noexcept nogil:
    """Return the source that an index belongs to, and its indices before this one."""
    cdef int32_t node = tree.root
    cdef const Branch *branch
    cdef RareCount rare
    while node >= 0:
        branch = &tree.branches[node]
        rare = count_rare(branch, index)
        index = rare.before if rare.is_rare else index - rare.before
        node = branch.rare_child if rare.is_rare else branch.other_child
    return Pick(~node, <int64_t>index)


cdef inline uint64_t count_source(const Tree *tree, int64_t source, uint64_t index) noexcept nogil:
    """Return how many of the indices before one belong to a source."""
    cdef int32_t path[MAX_DEPTH]
    cdef int32_t node = tree.leaf_parents[source], child
    cdef int depth = 0
    cdef uint64_t num_rare
    if node == NO_LEAF:
        return 0
    while node >= 0:
        path[depth] = node
        depth += 1
        node = tree.parents[node]
    while depth > 0:
        depth -= 1
        child = path[depth - 1] if depth else ~<int32_t>source
        num_rare = count_rare(&tree.branches[path[depth]], index).before
        if tree.branches[path[depth]].rare_child == child:
            index = num_rare
        else:
            index -= num_rare
    return index


cdef inline int64_t ascend(const Tree *tree, int64_t source, uint64_t number) noexcept nogil:
    """Return the index that is the number-th of a source; -1 if it is 2^61 or more."""
    cdef int32_t node = tree.leaf_parents[source], child = ~<int32_t>source
    cdef const Branch *branch
    if node == NO_LEAF:
        return -1
    while node >= 0:
        branch = &tree.branches[node]
        if branch.rare_child == child:
            number = rare_index(branch, number)
        else:
            number = other_index(branch, number)
        if number >= <uint64_t>1 << 61:
            return -1
        child, node = node, tree.parents[node]
    return <int64_t>number
