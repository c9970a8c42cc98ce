"""What a run needs: memory, micro-batches, steps, tokens and time, before it begins."""


def choose_slices(settings, stage, replicas):
    """Number of slices into which each replica splits its rows of a stage (gradient accumulation).

    Args:
        settings: `PretrainingSettings`.
        stage: `Stage`.
        replicas: positive integer.
    """
    rows = stage.global_batch_size // replicas
    micro_batch_size = settings.run.micro_batch_size
    return 1 if micro_batch_size is None else -(-rows // micro_batch_size)
