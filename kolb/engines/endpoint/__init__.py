"""The parts of ``kolb.engines.openai_compat``: requests and answers, faults, spending, cache, connections."""
