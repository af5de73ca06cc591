"""Tokenizes with the real datatrove, in its own environment; driven by `text_tokenize`.

Each input line is a request: a directory to write to. The reply is a line with the number of
tokens, sent when its pipeline has tokenized all files.
"""

import sys
from importlib.metadata import version

from datatrove.executor import LocalPipelineExecutor  # type: ignore[import-not-found]
from datatrove.pipeline.readers import ParquetReader  # type: ignore[import-not-found]
from datatrove.pipeline.tokens import DocumentTokenizer  # type: ignore[import-not-found]

_NUM_PROCESSES = 2


def main() -> None:
    """Reply to requests until the input ends."""
    corpus, pattern, tokenizer, end_of_text = sys.argv[1:]
    print("datatrove", version("datatrove"), flush=True)
    for request in sys.stdin:
        out = request.strip()
        executor = LocalPipelineExecutor(
            [
                ParquetReader(corpus, glob_pattern=pattern),
                # Keeps the order of documents, as ours does: shuffling would read all tokens again.
                DocumentTokenizer(out, tokenizer, eos_token=end_of_text, shuffle_documents=False),
            ],
            tasks=_NUM_PROCESSES,
            workers=_NUM_PROCESSES,
            logging_dir=f"{out}/logs",
            start_method="fork",  # its processes inherit the imports
        )
        stats = executor.run()
        print(stats.stats[-1]["tokens"].total, flush=True)


if __name__ == "__main__":
    main()
