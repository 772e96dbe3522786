"""One engine, one file: where policies live, sample and learn. The contract is in ``base``."""
