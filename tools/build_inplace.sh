#!/usr/bin/env bash
# Builds the extension into src/torch_tpu, for work on the project: PYTHONPATH=src then uses it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
# Absolute, but not resolved: a virtual environment's python is a link.
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
build=build/inplace
if [ ! -f "$build/build.ninja" ]; then
  cmake -S . -B "$build" -G Ninja -DPython_EXECUTABLE="$python" ${CMAKE_FLAGS:-} >/dev/null
fi
cmake --build "$build" "$@"
# Renamed into place: processes that have the old one loaded keep it.
for library in "$build"/_C.*.so "$build"/_compiler.*.so; do
  name=$(basename "$library")
  cp "$library" "src/torch_tpu/.$name.new"
  mv "src/torch_tpu/.$name.new" "src/torch_tpu/$name"
done
# What pip would write, so that `import torch` finds the device through its entry point.
info=src/torch_tpu-0.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: torch-tpu\nVersion: 0\n' > "$info/METADATA"
printf '[torch.backends]\ntorch_tpu = torch_tpu._loader:load\n[torch_dynamo_backends]\ntpu = torch_tpu.compile.backend:tpu\n' > "$info/entry_points.txt"
