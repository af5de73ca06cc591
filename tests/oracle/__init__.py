"""What the product gave when it was last right, for thousands of small random cases.

    topic       a function that runs one kind of case, such as rows of packed documents
    case        a topic and a number, which together decide every choice that it makes
    seen        what a case shows: batches, positions, digests, bytes of files
    recorded    a digest of all that a case has shown, one line in `recorded/TOPIC.txt`

`make oracle` runs all cases and lists those that differ; `make test` runs a sample. To look at one,
print everything that it shows, and compare that with another engine (another checkout, or a wheel
of it, that is installed under another name):

    python -m tests.oracle packed 17
    diff <(python -m tests.oracle packed 17) <(python -m tests.oracle packed 17 --engine NAME)

A digest covers what was shown, not the arguments that asked for it: where a change spells something
in a new way, adapt the topic, and nothing needs to be recorded again. A change that means to give
other results records those topics again (`python -m tests.oracle --record packed`), in a commit
that says which cases differ, and why.

The choices come from `draws.py`, which depends on no version of Python or NumPy. Topics call the
engine by its public names only.
"""
