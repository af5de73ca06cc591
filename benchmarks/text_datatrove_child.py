"""Tokenizes with the real datatrove, in an environment of its own; `text_tokenize` talks to it.

A line on its input is a request: a directory to write to. The answer is a line, given when its
pipeline has tokenized all files: how many tokens it counted.
"""

import sys
from importlib.metadata import version

from datatrove.executor import LocalPipelineExecutor  # type: ignore[import-not-found]
from datatrove.pipeline.readers import ParquetReader  # type: ignore[import-not-found]
from datatrove.pipeline.tokens import DocumentTokenizer  # type: ignore[import-not-found]

_NUM_PROCESSES = 2


def main() -> None:
    """Answer requests until the input ends."""
    corpus, pattern, tokenizer, end_of_text = sys.argv[1:]
    print(version("datatrove"), flush=True)
    for request in sys.stdin:
        out = request.strip()
        executor = LocalPipelineExecutor(
            [
                ParquetReader(corpus, glob_pattern=pattern),
                # Documents stay in their order, as ours do: shuffling would read all tokens again.
                DocumentTokenizer(out, tokenizer, eos_token=end_of_text, shuffle_documents=False),
            ],
            tasks=_NUM_PROCESSES,
            workers=_NUM_PROCESSES,
            logging_dir=f"{out}/logs",
            start_method="fork",  # its processes have imported everything, as this one has
        )
        stats = executor.run()
        print(stats.stats[-1]["tokens"].total, flush=True)


if __name__ == "__main__":
    main()
