"""Mixtures: several views, read in exact proportions.

    source     a view with a weight, and how it is read (`MixtureSource`)
    weight     compared with those of the other sources; by samples, or by tokens
    share      a weight as an exact part of the positions
    change     other weights from a position on, at once or linearly (`Mixture.change`)

`mix` makes a `Mixture`, which a `Loader` takes like a view. `common_batch` has the rules by which
different views fill one batch, `history` what a state says about a mixture; `weights` has helpers
that compute weights. Which source each position holds is the work of `order.mixture_order`.
"""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from millstream.batches.batch_transform import Transform
from millstream.errors import UsageError
from millstream.mixing.mixture import By, Mixture
from millstream.mixing.source import MixtureSource
from millstream.order.mixture_order import WhenExhausted


def mix(
    sources: "Mapping[str, tuple[Any, Any] | MixtureSource] | str | PathLike[str]",
    *,
    seed: int = 0,
    by: By = "samples",
    when_exhausted: WhenExhausted = "stop",
    num_samples: int | None = None,
    check_tokenizers: bool = True,
    transform: Transform | None = None,
) -> Mixture:
    """Mix views in exact proportions; a `Loader` takes the result like a view.

    Arguments:
        sources: by name, `(view, weight)` or a `MixtureSource`, which has more settings. Or the
            path of a TOML or JSON file that describes the whole mixture (see `mixing.files`).
        seed: decides who comes when and, with their names, the shuffles of the sources.
        by: what the weights are shares of: 'samples' or 'tokens' (by the mean length of rows).
        when_exhausted: when a source has been read `max_epochs` times: 'stop' ends the mixture,
            'redistribute' gives its share to the others, in proportion.
        num_samples: positions in an epoch of the mixture, which is where `for batch in loader`
            pauses; by default as many as the sources have samples. Sources have their own epochs.
        check_tokenizers: refuse sources that were tokenized in different ways.
        transform: a function of each batch, which returns what is handed out instead, as that of a
            view.

    >>> mixture = millstream.mix({"a": (data.windows(4), 0.75), "b": (data.windows(4), 0.25)})
    >>> mixture
    <Mixture of rows of 4 tokens: a 0.75, b 0.25>
    >>> mixture.describe(steps=10, step_size=8).sources[0].samples
    60
    """
    settings: dict[str, Any] = {
        "seed": seed,
        "by": by,
        "when_exhausted": when_exhausted,
        "num_samples": num_samples,
        "check_tokenizers": check_tokenizers,
    }
    if not isinstance(sources, str | PathLike):
        return Mixture(sources, transform=transform, **settings)
    from millstream.mixing.files import read_mixture

    defaults = {"seed": 0, "by": "samples", "when_exhausted": "stop", "check_tokenizers": True}
    given = [name for name, value in settings.items() if value != defaults.get(name)]
    if given:
        raise UsageError(
            f"set {', '.join(given)} in {fspath(sources)}: settings come from the file"
        )
    return read_mixture(fspath(sources)).with_transform(transform)
