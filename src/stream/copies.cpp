#include "stream/copies.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

namespace millrace::stream {
namespace {

// How far one measurement moves the speed that is expected of a copy.
constexpr double kNewest = 0.2;
// A copy that was passed over is thought a little faster each time, so that one bad measurement is
// not for ever.
constexpr double kForget = 1.002;

}  // namespace

Expected<std::unique_ptr<Copies>> Copies::open(const std::vector<std::vector<std::string>>& paths,
                                               io::Mode mode, io::ReadHook* hook, Check check) {
  auto made = std::make_unique<Copies>();
  made->mode_ = mode;
  made->hook_ = hook;
  made->check_ = check;
  for (const auto& files : paths) {
    Copy copy;
    for (const std::string& path : files) {
      auto file = io::File::open(path, mode, hook);
      if (!file && file.error().code == Code::kUnsupported && mode == io::Mode::kDirect) {
        made->notes_.push_back(fmt::format("read buffered: {}", file.error().message));
        file = io::File::open(path, io::Mode::kBuffered, hook);
      }
      if (!file) return tl::make_unexpected(std::move(file.error()));
      const size_t index = copy.files.size();
      if (!made->copies_.empty() && file->size() != made->first_[index]->size()) {
        return fail(Code::kCorrupt, "{}: has {} bytes, but {} has {}: it is no copy of it", path,
                    file->size(), made->first_[index]->path(), made->first_[index]->size());
      }
      if (file->mode() == io::Mode::kBuffered) made->buffered_.push_back(path);
      copy.folder = std::filesystem::path(path).parent_path().string();
      copy.files.push_back({std::make_shared<const io::File>(std::move(*file)), false, false});
    }
    if (made->copies_.empty()) {
      for (const File& file : copy.files) made->first_.push_back(file.file);
    }
    made->copies_.push_back(std::move(copy));
  }
  return made;
}

uint32_t Copies::devices() const {
  std::set<uint64_t> devices;
  for (const Copy& copy : copies_) {
    for (const File& file : copy.files) devices.insert(file.file->device());
  }
  return static_cast<uint32_t>(devices.size());
}

std::vector<int> Copies::descriptors() const {
  std::vector<int> all;
  for (const Copy& copy : copies_) {
    for (const File& file : copy.files) all.push_back(file.file->descriptor());
  }
  return all;
}

// The copy that should be done first: what it has to read already, and this, at its speed. One that
// fails more than another waits for that one to fail as often.
uint32_t Copies::choose(uint64_t bytes) {
  double most = 0;
  for (const Copy& copy : copies_) most = std::max(most, copy.rate);
  if (most == 0) most = 1e9;
  uint32_t best = UINT32_MAX;
  double soonest = 0;
  for (uint32_t c = 0; c < copies_.size(); ++c) {
    Copy& copy = copies_[c];
    if (copy.dropped) continue;
    const double rate = copy.rate > 0 ? copy.rate : most;
    const double seconds = static_cast<double>(copy.queued + bytes) / rate;
    const uint32_t errors = best == UINT32_MAX ? UINT32_MAX : copies_[best].errors;
    if (copy.errors < errors || (copy.errors == errors && seconds < soonest)) {
      best = c;
      soonest = seconds;
    }
  }
  for (uint32_t c = 0; c < copies_.size(); ++c) {
    if (c != best) copies_[c].rate *= kForget;
  }
  return best;
}

Expected<std::shared_ptr<const io::File>> Copies::open_again(const io::File& old) const {
  MILLRACE_ASSIGN(io::File file, io::File::open(old.path(), old.mode(), hook_));
  if (file.size() != old.size()) {
    return fail(Code::kIo, "{}: has {} bytes now, had {} when the model was opened", old.path(),
                file.size(), old.size());
  }
  if (check_ == Check::kIdentity && file.identity() != old.identity()) {
    return fail(Code::kIo,
                "{}: was replaced since the model was opened, and nothing tells whether its bytes "
                "are the same: open the model again",
                old.path());
  }
  return std::make_shared<const io::File>(std::move(file));
}

Expected<Copies::Lease> Copies::begin(uint32_t index, uint32_t piece, uint64_t bytes,
                                      uint64_t end) {
  Lease lease;
  lease.piece = piece;
  lease.index = index;
  lease.bytes = bytes;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    lease.copy = choose(bytes);
    Copy& copy = copies_[lease.copy];
    const File& file = copy.files[index];
    lease.file = file.file;
    failed = file.failed;
    if (!file.reopened) {
      lease.place = static_cast<int>(lease.copy * first_.size() + index);
    }
    copy.queued += bytes;
    lease.queued = copy.queued;
  }
  lease.start = Clock::now();
  if (watch_) lease.begun_ns = watch_->begin(piece);
  if (!failed) return lease;
  auto again = open_again(*lease.file);
  if (!again) {
    Error error{again.error().code, fmt::format("{} (opened again for the bytes at offset {})",
                                                again.error().message, end - bytes)};
    this->end(lease, &error);
    return tl::make_unexpected(std::move(error));
  }
  lease.file = *again;
  lease.place = -1;
  std::lock_guard lock(mutex_);
  copies_[lease.copy].files[index] = {*again, false, true};
  return lease;
}

void Copies::end(const Lease& lease, const Error* error) {
  const std::chrono::duration<double> taken = Clock::now() - lease.start;
  if (watch_) watch_->end(lease.piece, lease.bytes, lease.begun_ns, error == nullptr);
  std::lock_guard lock(mutex_);
  Copy& copy = copies_[lease.copy];
  copy.queued -= lease.bytes;
  if (error == nullptr) {
    copy.errors /= 2;  // what came may still be found wrong
    // What was in front of it had to be read too.
    const double rate = static_cast<double>(lease.queued) / std::max(1e-6, taken.count());
    copy.rate = copy.rate > 0 ? copy.rate + kNewest * (rate - copy.rate) : rate;
    return;
  }
  failed(lease, *error);
}

void Copies::reject(const Lease& lease, const Error& error) {
  std::lock_guard lock(mutex_);
  failed(lease, error);
}

void Copies::failed(const Lease& lease, const Error& error) {
  Copy& copy = copies_[lease.copy];
  copy.files[lease.index].failed = true;
  copy.errors += 2;
  const auto left = std::ranges::count_if(copies_, [](const Copy& c) { return !c.dropped; });
  if (copy.dropped) return;
  if (left < 2) return take_back(lease.copy, error);
  copy.dropped = true;
  notes_.push_back(fmt::format("{}: no longer read, the other cop{} of the model serve{}: {}",
                               copy.folder, left == 2 ? "y" : "ies", left == 2 ? "s" : "",
                               error.message));
}

// The last copy failed as the others did before: a disk may have come back since.
void Copies::take_back(uint32_t last, const Error& error) {
  for (uint32_t c = 0; c < copies_.size(); ++c) {
    if (c == last) continue;
    Copy& copy = copies_[c];
    copy.dropped = false;
    copy.rate = 0;
    for (File& file : copy.files) file.failed = true;  // whatever failed: none is open any more
    notes_.push_back(fmt::format("{}: asked again, {} fails, too: {}", copy.folder,
                                 copies_[last].folder, error.message));
  }
}

std::vector<std::string> Copies::notes() {
  std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

}  // namespace millrace::stream
