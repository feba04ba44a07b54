// A model's files, and whole copies of them elsewhere (mirrors). Each read goes to the copy that
// is expected to be done with it first; a copy that fails is left alone while another one serves,
// and asked again when that one fails, too.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/file.h"
#include "stream/read_watch.h"

namespace millrace::stream {

class Copies {
 public:
  using Clock = std::chrono::steady_clock;

  // One read of one copy, between begin() and end().
  struct Lease {
    std::shared_ptr<const io::File> file;
    uint32_t copy = 0, index = 0;
    int place = -1;  // in descriptors(), -1 when the file was opened again since
    uint64_t bytes = 0, queued = 0;
    Clock::time_point start;
    uint32_t piece = 0;
    uint64_t begun_ns = 0;  // of the watch
  };

  // What tells the bytes of a file that has to be opened again from those of another one: hashes that
  // the reader checks, or that it must still be the same file.
  enum class Check : uint8_t { kHashes, kIdentity };

  // paths[copy][file]; the first copy is the model itself, and all must have its sizes. A file
  // that cannot be read directly is read through the page cache, which notes() tells.
  static Expected<std::unique_ptr<Copies>> open(const std::vector<std::vector<std::string>>& paths,
                                                io::Mode mode, io::ReadHook* hook,
                                                Check check = Check::kHashes);

  // Of the first copy.
  const io::File& file(uint32_t index) const { return *first_[index]; }
  uint32_t files() const { return static_cast<uint32_t>(first_.size()); }
  uint32_t copies() const { return static_cast<uint32_t>(copies_.size()); }
  uint32_t devices() const;  // different disks that hold files
  // Files of all copies that are read through the page cache.
  const std::vector<std::string>& buffered() const { return buffered_; }
  std::vector<int> descriptors() const;  // of all files of all copies, by Lease::place

  // Chooses a copy for a read of `bytes`, for a piece, that ends before `end`. A file that failed is
  // opened again, and the error says so when that does not work.
  Expected<Lease> begin(uint32_t index, uint32_t piece, uint64_t bytes, uint64_t end);
  // The disk is done with it. With an error the copy is dropped if another one is left; else those
  // that were dropped are asked again.
  void end(const Lease& lease, const Error* error);
  // What a read brought is wrong, which was found behind end().
  void reject(const Lease& lease, const Error& error);

  void watch(ReadWatch* watch) { watch_ = watch; }  // of every read; not while anything is read
  // Tries that a read is worth: one for each copy, and a second one of the last.
  unsigned tries() const { return copies() + 1; }

  std::vector<std::string> notes();  // what happened since the last call, for people

 private:
  struct File {
    std::shared_ptr<const io::File> file;
    bool failed = false, reopened = false;
  };
  struct Copy {
    std::string folder;
    std::vector<File> files;
    bool dropped = false;
    uint32_t errors = 0;  // two for each, and half of them forgotten by each good read
    double rate = 0;      // bytes a second, 0 while not known
    uint64_t queued = 0;  // bytes of reads not yet over
  };

  uint32_t choose(uint64_t bytes);
  void failed(const Lease& lease, const Error& error);
  void take_back(uint32_t last, const Error& error);
  Expected<std::shared_ptr<const io::File>> open_again(const io::File& old) const;

  io::Mode mode_ = io::Mode::kBuffered;
  io::ReadHook* hook_ = nullptr;
  ReadWatch* watch_ = nullptr;
  Check check_ = Check::kHashes;
  std::vector<std::shared_ptr<const io::File>> first_;
  std::vector<std::string> buffered_;
  std::mutex mutex_;
  std::vector<Copy> copies_;
  std::vector<std::string> notes_;
};

}  // namespace millrace::stream
