#!/usr/bin/env bash
# usage: run_cpp_tests.sh BUILD_FOLDER. Runs every *_test in it, with each CPU plugin that is installed.
set -euo pipefail
build=$1
plugins=$(python - <<'P'
import importlib.util, pathlib
for package, name in (("fastatomstruct_xla_cpu", "libpjrt_cpu.so"), ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so")):
    spec = importlib.util.find_spec(package)
    if spec:
        print(pathlib.Path(spec.origin or spec.submodule_search_locations[0]).parent / name
              if spec.origin else pathlib.Path(list(spec.submodule_search_locations)[0]) / name)
P
)
for test in "$build"/*_test; do
  name=$(basename "$test")
  case "$name" in
    pjrt_test | runtime_test)
      for plugin in $plugins; do
        "$test" "$plugin" >"$build/$name.log" 2>&1 || { echo "$name failed on $plugin" >&2; tail -20 "$build/$name.log" >&2; exit 1; }
      done ;;
    *) "$test" >"$build/$name.log" 2>&1 || { echo "$name failed" >&2; tail -20 "$build/$name.log" >&2; exit 1; } ;;
  esac
  echo "$name passed"
done
