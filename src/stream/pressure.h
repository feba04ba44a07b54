// Whether the system, or a memory cgroup we are in, is running short of memory.
//
// Looked at from the step loop: no thread of its own. The kernel's stall information (PSI) is waited
// for with triggers where we may set them; else the time that tasks stalled is read once a second.
#pragma once

#include <memory>
#include <string>

namespace millrace::stream {

enum class Pressure : uint8_t { kCalm, kWarn, kCritical };

struct PressureOptions {
  std::string root = "/";  // tests give a fake tree
  bool triggers = true;    // false: only read files
};

class PressureMonitor {
 public:
  static std::unique_ptr<PressureMonitor> create(const PressureOptions& options = {});
  virtual ~PressureMonitor() = default;

  // The worst since the last call. `now`: seconds of any steady clock. Costs a system call; once a
  // second some small files are read.
  virtual Pressure poll(double now) = 0;
  // False when there is nothing that can be watched.
  virtual bool active() const = 0;
  // "memory stalls of the system (trigger) and of cgroup /a (read each second)"
  virtual const std::string& watching() const = 0;
};

}  // namespace millrace::stream
