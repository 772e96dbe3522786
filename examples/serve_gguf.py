"""llama.cpp's server on a GGUF file, from a package that is already built.

    pip install xllamacpp
    python examples/serve_gguf.py MODEL.gguf --port 8080 --threads 1

It is what ``llama-server -m MODEL.gguf --port 8080 -t 1 -np 2 -c 16384`` starts, for machines without one.
"""

from __future__ import annotations

import argparse
import threading


def main() -> None:
    parser = argparse.ArgumentParser(description="llama.cpp's server on a GGUF file")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slots", type=int, default=2, help="requests at a time")
    parser.add_argument("--context", type=int, default=16384, help="tokens of all slots together")
    serve(parser.parse_args())


def serve(given: argparse.Namespace) -> None:
    """Serves until it is interrupted."""
    import xllamacpp  # pyright: ignore[reportMissingImports]

    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.port = given.port
    params.n_parallel = given.slots
    params.n_ctx = given.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    server = xllamacpp.Server(params)
    print(f"base_url = {server.listening_address}/v1", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
