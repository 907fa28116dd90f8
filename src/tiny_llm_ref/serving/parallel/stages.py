"""Pipeline parallelism: which layers each stage computes (GPipe, Huang et al., 2019; Narayanan et al., 2021)."""


def stage_layers(num_layers: int, num_stages: int, stage: int) -> range:
    """The layers of one stage: consecutive ones, so that activations go from a stage to the next and never back.

    Args:
        num_layers: of the model, at least `num_stages`.
        num_stages: how many stages share them.
        stage: from 0; the first one also has the embedding, and the last one the head.

    Returns:
        The indices of its layers. Stages differ by at most one layer. Where they differ, the later ones have fewer: the
        head costs as much as several layers of a small model.

    Raises:
        ValueError: there are more stages than layers.
    """
    if num_stages > num_layers:
        raise ValueError(
            f"pipeline_parallel_size is {num_stages}, and the model has {num_layers} layers: give at most {num_layers}"
        )
    # TASK 3.7.6: consecutive layers, in order; the first stages take the layers that are left over.
    share, more = divmod(num_layers, num_stages)
    start = stage * share + min(stage, more)
    return range(start, start + share + (stage < more))
