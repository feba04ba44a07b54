#include "stream/pressure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "stream/cgroup.h"

namespace millrace::stream {
namespace {

// Some task stalled 15 % of a second: memory is short. All of them stalled 10 %: it is a standstill.
// A process without privileges may only watch windows of two seconds.
constexpr double kSomeStalled = 0.15, kAllStalled = 0.10;
constexpr const char* kSomeTrigger[] = {"some 150000 1000000", "some 300000 2000000"};
constexpr const char* kAllTrigger[] = {"full 100000 1000000", "full 200000 2000000"};
constexpr double kInterval = 1.0;  // of reading files
// Stalls anywhere count for the system, those of a job at its own limit too. They are ours to ease
// only when the system is short.
constexpr uint64_t kSystemIsShort = 8;  // less than a part of 8 of memory is available
// What a group has left when it has no stall information.
constexpr uint64_t kLittle = uint64_t{8} << 20, kVeryLittle = uint64_t{2} << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// A trigger on a PSI file: readable (POLLPRI) when the stall it describes came.
Descriptor set_trigger(const std::string& path, const char* const (&texts)[2]) {
  for (const char* text : texts) {
    Descriptor fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (fd.get() < 0) break;
    if (::write(fd.get(), text, std::strlen(text) + 1) > 0) return fd;
  }
  return Descriptor();
}

// cgroup v1: an event file that becomes readable at a level of memory.pressure_level.
Descriptor set_v1_event(const std::string& folder, const char* level) {
  const Descriptor control(
      ::open((folder + "/cgroup.event_control").c_str(), O_WRONLY | O_CLOEXEC));
  const Descriptor file(::open((folder + "/memory.pressure_level").c_str(), O_RDONLY | O_CLOEXEC));
  if (control.get() < 0 || file.get() < 0) return Descriptor();
  Descriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (event.get() < 0) return Descriptor();
  const std::string text = fmt::format("{} {} {}", event.get(), file.get(), level);
  if (::write(control.get(), text.data(), text.size()) < 0) return Descriptor();
  return event;
}

// Microseconds of a PSI file's line, "some avg10=0.00 avg60=0.00 avg300=0.00 total=12".
std::optional<uint64_t> stalled(const std::string& text, const char* line) {
  const size_t at = text.find(line);
  const size_t total = at == std::string::npos ? at : text.find("total=", at);
  if (total == std::string::npos) return std::nullopt;
  return std::strtoull(text.c_str() + total + 6, nullptr, 10);
}

// One thing that is watched.
struct Source {
  std::string stalls;                // a PSI file; empty: none
  std::optional<Cgroup> group;       // nothing: the system
  Descriptor some, all;              // triggers or events, where we may have them
  uint64_t some_us = 0, all_us = 0;  // when last read
  uint64_t oom = 0, throttled = 0;   // of memory.events
  bool v1_events = false;
};

class Monitor : public PressureMonitor {
 public:
  explicit Monitor(const PressureOptions& options)
      : root_(options.root == "/" ? "" : options.root) {
    std::vector<std::string> names;
    const auto add = [&](Source source, const std::string& what) {
      if (options.triggers && !source.stalls.empty()) {
        source.some = set_trigger(source.stalls, kSomeTrigger);
        source.all = set_trigger(source.stalls, kAllTrigger);
      }
      const char* how = source.some.get() >= 0 || source.all.get() >= 0 ? "events" : "each second";
      names.push_back(fmt::format("{} ({})", what, how));
      sources_.push_back(std::move(source));
    };
    Source system;
    system.stalls = root_ + "/proc/pressure/memory";
    if (read_text(system.stalls)) add(std::move(system), "stalls of the system");

    bool own = true;  // an ancestor without room is felt in our own group
    for (const Cgroup& group : memory_cgroups(root_)) {
      if (!held_by(group)) continue;  // the root, or a hierarchy without the memory controller
      Source source;
      source.group = group;
      const std::string file = group.folder + "/memory.pressure";
      const auto text = group.v2 ? read_text(file) : std::nullopt;
      if (text && stalled(*text, "some")) {
        if (!std::exchange(own, false)) continue;
        source.stalls = file;
        add(std::move(source), fmt::format("stalls of cgroup {}", group.name));
      } else if (limit_of(group)) {
        if (!group.v2 && options.triggers) {
          source.some = set_v1_event(group.folder, "medium");
          source.all = set_v1_event(group.folder, "critical");
          source.v1_events = true;
        }
        add(std::move(source), fmt::format("room in cgroup {}", group.name));
      }
    }
    watching_ = names.empty() ? "nothing: neither /proc/pressure nor a memory cgroup can be read"
                              : fmt::format("{}", fmt::join(names, ", "));
    for (Source& source : sources_) (void)look(source, 0);
  }

  Pressure poll(double now) override {
    Pressure worst = Pressure::kCalm;
    std::vector<pollfd>& fds = fds_;
    fds.clear();
    for (const Source& source : sources_) {
      // A PSI file is always POLLIN; an event file of cgroup v1 never POLLPRI.
      const short wanted = source.v1_events ? POLLIN : POLLPRI;
      fds.push_back({source.some.get(), wanted, 0});
      fds.push_back({source.all.get(), wanted, 0});
    }
    if (!fds.empty() && ::poll(fds.data(), fds.size(), 0) > 0) {
      for (size_t i = 0; i < fds.size(); ++i) worst = std::max(worst, event(i, fds[i]));
    }
    if (last_ && now - *last_ < kInterval) return worst;
    const double seconds = last_ ? now - *last_ : 0;
    last_ = now;
    for (Source& source : sources_) worst = std::max(worst, look(source, seconds));
    return worst;
  }

  bool active() const override { return !sources_.empty(); }
  const std::string& watching() const override { return watching_; }

 private:
  Pressure event(size_t index, const pollfd& fd) {
    if (fd.revents == 0) return Pressure::kCalm;
    Source& source = sources_[index / 2];
    if (fd.revents &
        (POLLERR | POLLHUP | POLLNVAL)) {  // the group is gone, say: read files instead
      (index % 2 == 0 ? source.some : source.all) = Descriptor();
      return Pressure::kCalm;
    }
    if (source.v1_events) {
      uint64_t count = 0;
      if (::read(fd.fd, &count, sizeof count) != sizeof count) return Pressure::kCalm;
      // Reads through the page cache fill a group and bring such events; that is no shortage.
      const uint64_t limit = limit_of(*source.group).value_or(GroupLimit{}).bytes;
      if (left_in(*source.group) >= limit / kSystemIsShort) return Pressure::kCalm;
    }
    if (!source.group && !system_is_short()) return Pressure::kCalm;
    return index % 2 == 0 ? Pressure::kWarn : Pressure::kCritical;
  }

  // Reads the source's files; `seconds` since they were read last (0: for the first time).
  Pressure look(Source& source, double seconds) {
    Pressure level = Pressure::kCalm;
    const auto text = source.stalls.empty() ? std::nullopt : read_text(source.stalls);
    if (text) {
      const uint64_t some = stalled(*text, "some").value_or(0);
      const uint64_t all = stalled(*text, "full").value_or(0);
      const auto share = [&](uint64_t now, uint64_t before) {
        return seconds > 0 && now > before ? static_cast<double>(now - before) * 1e-6 / seconds : 0;
      };
      if (source.some.get() < 0 && share(some, source.some_us) >= kSomeStalled)
        level = Pressure::kWarn;
      if (source.all.get() < 0 && share(all, source.all_us) >= kAllStalled)
        level = Pressure::kCritical;
      source.some_us = some;
      source.all_us = all;
      if (!source.group && level != Pressure::kCalm && !system_is_short()) level = Pressure::kCalm;
    }
    if (!source.group) return level;
    const uint64_t left = left_in(*source.group);
    if (!text) {
      if (left < kLittle) level = std::max(level, Pressure::kWarn);
      if (left < kVeryLittle) level = std::max(level, Pressure::kCritical);
    }
    if (source.group->v2) {
      if (const auto events = read_text(source.group->folder + "/memory.events")) {
        const auto count = [&](const char* key) { return number_after(*events, key).value_or(0); };
        const uint64_t oom = count("oom") + count("oom_kill");
        const uint64_t throttled = count("high") + count("max");
        // The page cache of our own reads meets these limits, too; that alone is no shortage.
        if (seconds > 0 && throttled > source.throttled && left < 2 * kLittle)
          level = std::max(level, Pressure::kWarn);
        if (seconds > 0 && oom > source.oom) level = Pressure::kCritical;
        source.oom = oom;
        source.throttled = throttled;
      }
    }
    return level;
  }

  static uint64_t left_in(const Cgroup& group) {
    const auto limit = limit_of(group);
    const auto held = held_by(group);
    return limit && held ? limit->bytes - std::min(limit->bytes, *held) : UINT64_MAX;
  }

  bool system_is_short() const {
    const auto text = read_text(root_ + "/proc/meminfo");
    if (!text) return true;
    const auto total = number_after(*text, "MemTotal:");
    const auto available = number_after(*text, "MemAvailable:");
    return !total || !available || *available < *total / kSystemIsShort;
  }

  std::string root_, watching_;
  std::vector<Source> sources_;
  std::vector<pollfd> fds_;
  std::optional<double> last_;
};

}  // namespace

std::unique_ptr<PressureMonitor> PressureMonitor::create(const PressureOptions& options) {
  return std::make_unique<Monitor>(options);
}

}  // namespace millrace::stream
