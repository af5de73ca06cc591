"""Run the oracle: all topics or some, or one case whose results are printed.

python -m tests.oracle                      all cases, against what was recorded
python -m tests.oracle windows packed       those of two topics
python -m tests.oracle packed 17            one case, with all that it shows
python -m tests.oracle --record packed      record a topic again
"""

import argparse
import importlib
import os
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.oracle.recordings import NUM_CASES, TOPICS, record, recorded, run, run_some

_CASES_AT_ONCE = 10


def _digests(names, engine_name):
    """Yield each topic with the digests of all its cases, run by one process for each processor."""
    numbers = {name: range(NUM_CASES[TOPICS[name]]) for name in names}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        results = {}
        for name, all_of_it in numbers.items():
            starts = range(0, len(all_of_it), _CASES_AT_ONCE)
            some = [all_of_it[start : start + _CASES_AT_ONCE] for start in starts]
            results[name] = pool.map(partial(run_some, name, engine_name), some)
        for name, result in results.items():
            yield name, [digest for digests in result for digest in digests]


def _record(name, digests):
    """Record a topic again; returns the number of cases that ended with an error."""
    failed = {k: digest for k, digest in enumerate(digests) if not _is_digest(digest)}
    for number, error in failed.items():
        print(f"failed: {name} {number}   {error}")
    if not failed:
        record(name, digests)
    return len(failed)


def _compare(name, digests):
    """Print which cases of a topic differ from what was recorded; returns their number."""
    before = recorded(name)
    differing = [k for k, digest in enumerate(digests) if [digest] != before[k : k + 1]]
    for number in differing:
        reason = "" if _is_digest(digests[number]) else f"   {digests[number]}"
        print(f"differs: {name} {number}{reason}")
    if len(before) > len(digests):
        print(f"{name}: {len(before):,} cases were recorded; record the topic again")
    return len(differing) + max(0, len(before) - len(digests))


def _is_digest(text):
    return re.fullmatch("[0-9a-f]{12}( (Usage|Format)Error)?", text)


def _main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="or one topic and a number")
    parser.add_argument("--record", action="store_true", help="record what the topics give now")
    parser.add_argument("--engine", default="millstream", metavar="MODULE")
    arguments = parser.parse_args()
    names = arguments.topics or list(TOPICS)
    number = int(names.pop()) if len(names) == 2 and names[1].isdecimal() else None
    if arguments.record and number is not None:
        parser.error("--record takes whole topics, as case numbers are lines of their files")
    if unknown := sorted(set(names) - set(TOPICS)):
        parser.error(f"no topic {', '.join(unknown)}; topics are {', '.join(TOPICS)}")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        if number is not None:
            print(run(names[0], number, importlib.import_module(arguments.engine), show=print))
            return 0
        check = _record if arguments.record else _compare
        num_cases = num_failed = 0
        for name, digests in _digests(names, arguments.engine):
            print(f"{name}: {len(digests):,} cases", flush=True)
            num_failed += check(name, digests)
            num_cases += len(digests)
    print(f"{num_failed:,} of {num_cases:,} cases {'failed' if arguments.record else 'differ'}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(_main())
