"""How much memory and time does a conversion take, compared with the size of the checkpoint?

A checkpoint of random bfloat16 weights in the shape of Qwen3.5-0.8B is quantised to 4 bits, in shards of several sizes, each in a separate
process. Memory: peak resident size while the weights are written, above that of the process before; loading the result as a check comes
after that and is counted separately.

python benchmarks/convert.py [--shape 0.8B|tiny] [--shard-mib N,N] [--dry-run] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evidence import evidence, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.8B", choices=("0.8B", "tiny"))
    parser.add_argument("--shard-mib", default="64,256,1024")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--convert", nargs=3, metavar=("SOURCE", "TARGET", "MIB"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(size) for size in options.shard_mib.split(",")]
    if options.make:
        print(json.dumps(make(options.make, options.shape)))
    elif options.convert:
        print(json.dumps(converted(Path(options.convert[0]), Path(options.convert[1]), int(options.convert[2]))))
    elif options.dry_run:
        print(f"would convert a random checkpoint of shape {options.shape} in shards of {sizes} MiB")
    else:
        config = {"shape": options.shape, "bits": 4, "group_size": 32, "shard_mib": sizes}
        head = evidence(kernels="none: nothing is multiplied", model_digest="random weights, not stored", numerics="none", config=config)
        head["model"] = {"name": f"random, of shape {options.shape}", "digest": None, "quantisation": "none (bfloat16)"}
        result = measure(options.shape, sizes)
        write(options.out, head | result)
        print(json.dumps(result, indent=1))


def measure(shape: str, sizes: list[int]) -> dict[str, Any]:
    """One conversion per shard size, of the same checkpoint, each in a new process: a fork inherits its parent's peak."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source"
        largest_bytes = done("--make", source, "--shape", shape)
        runs = [done("--convert", source, Path(name) / f"to-{mib}", mib) for mib in sizes]
        return {"source_bytes": sum(f.stat().st_size for f in source.iterdir()), "largest_matrix_bytes": largest_bytes, "runs": runs}


def done(*arguments: object) -> Any:
    """The output of this script with these arguments."""
    return json.loads(subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True, capture_output=True, text=True).stdout)


def make(folder: Path, shape: str) -> int:
    """Write the checkpoint; returns the bytes of its largest matrix."""
    import mlx.core as mx

    from on_gpu.shapes import SHAPES, tensors

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    made = tensors(SHAPES[shape])
    mx.save_safetensors(str(folder / "model.safetensors"), made)
    return max(tensor.nbytes for tensor in made.values())


def converted(source: Path, target: Path, shard_mib: int) -> dict[str, Any]:
    """The cost of one conversion, in this process."""
    from forerun.kernels.numerics import FAST
    from forerun.kernels.quantised import Scheme
    from forerun.models.checkpoint import Folder
    from forerun.models.convert import write as write_weights
    from forerun.models.load import load
    from forerun.models.recipe import Recipe

    def silent(doing: str, done_frac: float) -> None:
        """No progress."""

    target.mkdir()
    before_bytes, begun_s = resident_bytes(), time.perf_counter()
    written = write_weights(Folder.find(source).open(), target, Recipe(Scheme("affine", 4, 32), (), (), False), silent, shard_mib << 20)
    write_s, write_bytes = time.perf_counter() - begun_s, resident_bytes() - before_bytes
    load(target, FAST, "bfloat16", silent)
    stats = {"shard_bytes": shard_mib << 20, "target_bytes": written.num_bytes, "files": len(set(written.files.values()))}
    return stats | {"write_s": write_s, "write_memory_bytes": write_bytes, "memory_with_check_bytes": resident_bytes() - before_bytes}


def resident_bytes() -> int:
    """The peak resident size of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
