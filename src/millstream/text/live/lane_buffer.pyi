from enum import IntEnum

ABSENT: int

class LivePolicyCode(IntEnum):
    FLAT = 0
    BEST_FIT = 1
    BOS_BEST_FIT = 2
    FULL_BEST_FIT = 3

class OverflowCode(IntEnum):
    SPLIT = 0
    TRUNCATE = 1
    DROP = 2

class LaneOutcome(IntEnum):
    DONE = 0
    NEEDS_DOCUMENTS = 1
    NEEDS_TOKENS = 2
    LANE_ENDED = 3
    NO_MEMORY = 4
