// SPDX-License-Identifier: Apache-2.0
// Modes, counters, the disk cache and the environment, for torch_tpu.tpu and the command line.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/env.h"
#include "base/log.h"
#include "python/bindings.h"
#include "runtime/compile_log.h"
#include "runtime/disk_cache.h"
#include "runtime/executor.h"
#include "runtime/metrics.h"
#include "runtime/precision.h"
#include "runtime/profile.h"
#include "runtime/program.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

py::dict counters() {
  const runtime::metrics::Counters now = runtime::metrics::counters();
  py::dict out;
  out["launches"] = now.launches;
  out["plans"] = now.plans;
  out["programs_compiled"] = now.programs_compiled;
  out["programs_from_disk"] = now.programs_from_disk;
  out["compile_seconds"] = now.compile_seconds;
  return out;
}

py::tuple compile_report() {
  const auto report = runtime::compile_log::report();
  py::list entries;
  for (const auto& e : report.entries) entries.append(py::make_tuple(e.name, e.reason, e.line, e.seconds, e.from_disk));
  return py::make_tuple(entries, report.dropped);
}

void set_eager_mode(int mode) {
  if (mode < 0 || mode > 2) fail(ErrorKind::Value, "there is no eager mode ", mode);
  runtime::set_eager_mode(static_cast<runtime::EagerMode>(mode));
}

py::list env_table() {
  py::list out;
  for (const env::Setting& setting : env::table())
    out.append(py::make_tuple(setting.row->name, setting.value, setting.set, setting.row->fallback, setting.row->help));
  return out;
}

py::list program_memory() {
  py::list out;
  for (const runtime::ProgramMemory& p : runtime::program_memory()) {
    py::dict row;
    row["name"] = p.name;
    row["number"] = p.number;
    row["arguments"] = p.memory.arguments;
    row["outputs"] = p.memory.outputs;
    row["aliased"] = p.memory.aliased;
    row["temporaries"] = p.memory.temporaries;
    // What it holds while it runs, where the plugin does not say: all of its parts at once.
    row["peak"] = p.memory.peak > 0 ? p.memory.peak
                                    : p.memory.arguments + p.memory.outputs - p.memory.aliased + p.memory.temporaries;
    out.append(row);
  }
  return out;
}

}  // namespace

void init_runtime(py::module_& m) {
  m.def("eager_mode", [] { return static_cast<int>(runtime::eager_mode()); });
  m.def("set_eager_mode", &set_eager_mode, py::arg("mode"), Unlocked());
  m.def("allow_excess_precision", &runtime::allow_excess_precision);
  m.def("set_allow_excess_precision", &runtime::set_allow_excess_precision, py::arg("allow"));

  m.def("counters", &counters);
  m.def("compile_report", &compile_report);
  m.def("loaded_programs", &runtime::loaded_programs);
  m.def("unload_programs", &runtime::unload_programs, Unlocked());
  m.def("fallback_stats", &runtime::metrics::fallback_stats);
  m.def("reset_metrics", &runtime::metrics::reset);
  m.def("set_profile_options", [](bool lines, bool transfers) { runtime::profile::set_options({lines, transfers}); });

  m.def("cache_folder", &runtime::disk_cache::folder);
  m.def("cache_usage", [] {
    runtime::disk_cache::Usage usage;
    {
      py::gil_scoped_release unlocked;
      usage = runtime::disk_cache::usage();
    }
    return py::make_tuple(usage.files, usage.bytes);
  });
  m.def("cache_clear", &runtime::disk_cache::clear, Unlocked());

  m.def("program_memory", &program_memory);
  m.def("cpu_fallback", [] { return env::get_string("TORCH_TPU_CPU_FALLBACK"); });
  m.def("env_table", &env_table);
  m.def("debug_level", &log::level);
  m.def("set_debug_level", &log::set_level, py::arg("level"));
}

}  // namespace tpu::python
