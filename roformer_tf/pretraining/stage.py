import dataclasses

from roformer_tf.checks import check_number, check_positive_integer


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of pretraining: so many optimizer steps on rows of at most one length.

    Args:
        max_length: positive integer, the most tokens of a row, special tokens included.
        global_batch_size: positive integer, rows of one optimizer step, over all replicas and accumulation slices.
        steps: positive integer, optimizer steps.
        learning_rate: float, the peak.
        learning_rate_factors: dict from a step of this stage to the share of `learning_rate` there; a straight line
            between them and from 0 at step 0, constant after the last. `None` for a constant rate.

    Raises:
        ValueError: if a number is out of range.

    Example:

    >>> from roformer_tf.pretraining import Stage
    >>> Stage(max_length=512, global_batch_size=256, steps=200_000, learning_rate=1e-5).positions
    26214400000

    Reference: table 4 of arXiv 2104.09864.
    """

    max_length: int
    global_batch_size: int
    steps: int
    learning_rate: float
    learning_rate_factors: dict | None = None

    def __post_init__(self):
        for name in ("max_length", "global_batch_size", "steps"):
            check_positive_integer(name, getattr(self, name))
        if self.max_length < 8:
            raise ValueError(
                f"`max_length` must be at least 8. Received: max_length={self.max_length}"
            )
        check_number("learning_rate", self.learning_rate, low=0.0)
        if self.learning_rate_factors is not None:
            if not isinstance(self.learning_rate_factors, dict) or not self.learning_rate_factors:
                raise ValueError(
                    "`learning_rate_factors` must name at least one step, such as {20000: 1.0}. "
                    f"Received: learning_rate_factors={self.learning_rate_factors!r}"
                )
            factors = {}
            for step, factor in self.learning_rate_factors.items():
                # the keys of a TOML table are strings
                if not str(step).isdecimal():
                    raise ValueError(
                        "The keys of `learning_rate_factors` are steps of the stage, integers from 0. "
                        f"Received: {step!r}"
                    )
                check_number(f"learning_rate_factors[{step}]", factor, low=0.0)
                factors[int(step)] = float(factor)
            object.__setattr__(self, "learning_rate_factors", dict(sorted(factors.items())))

    @property
    def positions(self):
        """Places for tokens that the stage computes at most: rows × length × steps."""
        return self.max_length * self.global_batch_size * self.steps
