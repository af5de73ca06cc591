"""Training: learns vocabularies of byte-level BPE by streaming over a source.

    word    a piece that the split pattern makes of a text
    pair    two neighbouring tokens of a word
    merge   a pair that becomes a new token: the most frequent one, again and again
    place   the position of a byte in all distinct words, laid end to end

`train.py` holds `train_tokenizer`. It streams the text (`training_text.py`), counts its distinct
words (`word_counting.py`, with the hash tables of `word_table.pyx`), learns merges from the counts
(`merge_learning.py`, with the kernel of `merge_learner.pyx`) and saves the vocabulary
(`vocabulary_directory.py`). The same text gives the same vocabulary, equal to rustbpe's.
"""

from millstream.text.training.train import SPECIALS, TrainingReport, train_tokenizer

__all__ = ["SPECIALS", "TrainingReport", "train_tokenizer"]
