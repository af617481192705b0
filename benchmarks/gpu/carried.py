"""What a machine without network gets brought along, in pieces that each fit one trip: two models, and one file of vLLM.

    python -m benchmarks.gpu.carried pack   # here, with the environment of `make setup`: writes .gpu/a, .gpu/b, .gpu/c
    python3 -m benchmarks.gpu.carried join  # there, after all are there: writes .gpu/models

SmolLM2-135M-Instruct travels as the GGUF that it is published as, four bits a weight, cut in three, and is converted there. The demo's
base model is made here as prepare makes it. Both become folders under their final name only when they are whole.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".gpu"
PIECES = (HOME / "a", HOME / "b", HOME / "c")
PIECE_BYTES = 40 << 20
"""Of the GGUF in all but the last, which has the rest and what is small: each has room for the checkout beside it, within 64 MiB a trip."""
LAST = PIECES[-1]
KERNEL = LAST / "vllm_gumbel.py"
DEMO, REAL = HOME / "models" / "demo", HOME / "models" / "smollm2"
PART, DIGEST = "smollm2.gguf", "smollm2.sha256"
MANIFEST = ROOT / "examples" / "arithmetic" / "trainingrun.yaml"
sys.path.append(str(ROOT / "tools"))  # what fetches and converts the real model


def pack() -> None:
    """Fill the folders anew. A minute, most of it for the demo's model."""
    import fetch_smollm2

    from benchmarks.trust.triton_rule import vllm_file

    for piece in PIECES:
        shutil.rmtree(piece, ignore_errors=True)
        piece.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        weights = fetch_smollm2.weights(Path(scratch)).read_bytes()
    for number, piece in enumerate(PIECES):
        end = None if piece == LAST else (number + 1) * PIECE_BYTES
        (piece / PART).write_bytes(weights[number * PIECE_BYTES : end])
    (LAST / DIGEST).write_text(hashlib.sha256(weights).hexdigest())
    fetch_smollm2.pip(
        LAST,
        "download",
        [each for each in fetch_smollm2.CONVERTERS if each.startswith("gguf")],
        "--dest",
        str(LAST),
    )
    (LAST / "download.txt").unlink()
    shutil.copy(vllm_file(), KERNEL)
    _make_demo(LAST / "demo")
    for piece in PIECES:
        size = sum(path.stat().st_size for path in piece.rglob("*") if path.is_file())
        print(f"{piece.relative_to(ROOT)}: {size / 2**20:.1f} MiB")


def _make_demo(folder: Path) -> None:
    import yaml

    from shoal.environments.arithmetic import Arithmetic
    from shoal.environments.generated_model import make_model
    from shoal_operator.api.training_run import TrainingRun

    spec = TrainingRun.model_validate(yaml.safe_load(MANIFEST.read_text())).spec
    assert spec.model.generated is not None
    targets = list(spec.length_reward.targets) if spec.length_reward is not None else [None]
    make_model(
        folder, Arithmetic(), targets, spec.model.generated, spec.recipe.max_sequence_length, spec.seed, lambda *_: None
    )


def join() -> None:
    """Make the models from the pieces. One line says what is missing or spoilt."""
    missing = [
        path for path in (*(piece / PART for piece in PIECES), LAST / DIGEST, LAST / "demo") if not path.exists()
    ]
    if missing:
        raise SystemExit(f"{missing[0].relative_to(ROOT)} is missing: bring the pieces along (`pack` makes them)")
    HOME.joinpath("models").mkdir(exist_ok=True)
    if not DEMO.exists():
        shutil.copytree(LAST / "demo", DEMO.with_name(".demo"), dirs_exist_ok=True)
        DEMO.with_name(".demo").rename(DEMO)
    if REAL.exists():
        return
    weights = b"".join((piece / PART).read_bytes() for piece in PIECES)
    if hashlib.sha256(weights).hexdigest() != (LAST / DIGEST).read_text():
        raise SystemExit("the parts of the GGUF are not those of one file: pack and bring all again")
    with tempfile.TemporaryDirectory(dir=HOME) as scratch:
        [archive] = LAST.glob("gguf-*.whl")
        with zipfile.ZipFile(archive) as files:
            files.extractall(Path(scratch) / "packages")
        sys.path.append(str(Path(scratch) / "packages"))  # before transformers looks for it
        import fetch_smollm2

        (Path(scratch) / "weights.gguf").write_bytes(weights)
        fetch_smollm2.convert(str(Path(scratch) / "weights.gguf"), str(Path(scratch) / "made"))
        (Path(scratch) / "made").rename(REAL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "join"))
    pack() if parser.parse_args().what == "pack" else join()
