// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

namespace tpu {

// A line on the terminal while something takes more than two seconds: "torch_tpu: compiling aten::mm, 3 s".
// Erased when it is done. Nothing where stderr is no terminal, where log lines go to it, or with
// TORCH_TPU_PROGRESS=0. One line for all threads: the first that takes long has it.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Takes the line off the terminal before something else is written there; the next second brings it back.
  static void erase();

 private:
  struct Ticker;
  std::unique_ptr<Ticker> ticker_;
};

}  // namespace tpu
