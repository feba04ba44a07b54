// What this machine can do at most: how fast weights come from the model's disk and out of memory.
#pragma once

#include <string>
#include <vector>

#include "io/probe.h"
#include "millrace/status.h"

namespace millrace::cli {

struct Roofs {
  bool measured = false;
  double disk = 0;                  // bytes/s, reads of expert size from where the model lies
  double cached = 0;                // bytes/s, the same through the page cache, which may hold them
  double memory = 0;                // bytes/s, all threads reading
  std::string disk_how;             // "direct, reads of 1.00 MiB, 8 at a time"
  std::string no_direct;            // why direct reads are not possible, if so
  std::string no_uring;             // why there is no io_uring, if so
  std::vector<io::ReadRate> curve;  // direct reads by size, depth and way
};

// The files of a model: itself and the other parts of a split .gguf, or those of its folder.
std::vector<std::string> model_files(const std::string& path);

// The file that speaks for a model: the largest of its files; empty when there is none.
std::string model_file(const std::string& path);

// Takes two or three seconds. `path`: a model, whose largest file is read, or a folder, in which a
// nameless scratch file is written when it has no large one. threads 0: one for each processor.
Expected<Roofs> measure_roofs(const std::string& path, unsigned threads);

}  // namespace millrace::cli
