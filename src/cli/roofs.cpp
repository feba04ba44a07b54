#include "cli/roofs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "base/status.h"
#include "cli/size.h"
#include "io/probe.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLargeFile = uint64_t{64} << 20;  // below this a disk's own cache is measured
constexpr uint64_t kScratch = uint64_t{256} << 20;
constexpr uint64_t kScratchPart = uint64_t{4} << 20;

// A file without a name: it is gone when we are, however we end.
class Scratch {
 public:
  static Expected<Scratch> create(const std::string& folder) {
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (error || space.available < 2 * kScratch)
      return fail(Code::kIo, "{}: no room for a scratch file of {}", folder,
                  format_size(static_cast<double>(kScratch)));
    std::string path = folder + "/millrace-probe-XXXXXX";
    Scratch scratch;
    scratch.fd_ = ::mkstemp(path.data());
    if (scratch.fd_ < 0)
      return fail(Code::kIo, "{}: no scratch file can be made: {}", folder, std::strerror(errno));
    ::unlink(path.c_str());
    MILLRACE_TRY(scratch.fill(folder));
    return scratch;
  }

  Scratch(Scratch&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() {
    if (fd_ >= 0) ::close(fd_);
  }

  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  Scratch() = default;

  // Random bytes: some file systems compress, and holes would be read without the disk.
  Status fill(const std::string& folder) {
    std::vector<uint64_t> part(kScratchPart / sizeof(uint64_t));
    std::mt19937_64 random(1);
    for (uint64_t& word : part) word = random();
    for (uint64_t done = 0; done < kScratch; done += kScratchPart) {
      part[0] = done;
      if (::write(fd_, part.data(), kScratchPart) != static_cast<ssize_t>(kScratchPart))
        return fail(Code::kIo, "{}: the scratch file cannot be written: {}", folder,
                    std::strerror(errno));
    }
    if (::fsync(fd_) != 0)
      return fail(Code::kIo, "{}: the scratch file cannot be written: {}", folder,
                  std::strerror(errno));
    return {};
  }

  int fd_ = -1;
};

Expected<io::ProbeResult> probe_disk(const std::string& path) {
  std::error_code error;
  const std::string file = model_file(path);
  const uint64_t size = file.empty() ? 0 : fs::file_size(file, error);
  if (!fs::is_directory(path, error) || size >= kLargeFile) return io::probe_file(file);
  MILLRACE_ASSIGN(const Scratch scratch, Scratch::create(path));
  return io::probe_file(scratch.path());
}

}  // namespace

std::vector<std::string> model_files(const std::string& path) {
  // "name-00001-of-00003.gguf": whatever stands for the number belongs to it.
  constexpr size_t kNumber = 5, kTail = std::string_view("-of-00003.gguf").size();
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const std::string name = fs::path(path).filename().string();
  const bool split = !folder && name.size() > kNumber + kTail && name.ends_with(".gguf") &&
                     name.substr(name.size() - kTail, 4) == "-of-";
  if (!folder && !split) return {path};
  const std::string tail = split ? name.substr(name.size() - kTail) : "";
  const std::string head = split ? name.substr(0, name.size() - kTail - kNumber) : "";
  const fs::path parent = folder ? fs::path(path) : fs::path(path).parent_path();
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(parent.empty() ? "." : parent, error)) {
    std::error_code bad;
    const std::string other = entry.path().filename().string();
    if (!entry.is_regular_file(bad)) continue;
    if (split &&
        (other.size() != name.size() || !other.starts_with(head) || !other.ends_with(tail)))
      continue;
    files.push_back(entry.path().string());
  }
  return files;
}

std::string model_file(const std::string& path) {
  std::error_code error;
  std::string best = fs::is_directory(path, error) ? "" : path;
  uint64_t most = 0;
  for (const std::string& file : model_files(path)) {
    std::error_code bad;
    const uint64_t size = fs::file_size(file, bad);
    if (!bad && size > most) {
      most = size;
      best = file;
    }
  }
  return best;
}

Expected<Roofs> measure_roofs(const std::string& path, unsigned threads) {
  MILLRACE_ASSIGN(const io::ProbeResult probe, probe_disk(path));
  const io::ReadRate* direct = probe.best_direct();
  const io::ReadRate& rate = direct != nullptr ? *direct : probe.buffered;
  Roofs roofs;
  roofs.measured = true;
  roofs.disk = rate.bytes_per_second();
  roofs.disk_how =
      fmt::format("{}, {}, reads of {}, {} at a time", io::name(rate.mode), io::name(rate.via),
                  format_size(static_cast<double>(rate.request)), rate.depth);
  roofs.cached = probe.buffered.bytes_per_second();
  roofs.no_direct = probe.direct_obstacle;
  roofs.no_uring = probe.uring_obstacle;
  roofs.curve = probe.rates;
  roofs.memory = io::probe_memory(threads > 0 ? threads : Cpu::detect().logical);
  return roofs;
}

}  // namespace millrace::cli
