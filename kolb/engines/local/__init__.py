"""The parts of the in-process engine: model, attention, head, learner, sampler."""
