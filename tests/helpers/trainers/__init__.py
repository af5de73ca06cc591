"""Programs that train with one framework each, for `tests.helpers.trainer_runs`."""
