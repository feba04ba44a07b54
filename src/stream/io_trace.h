// A record of every read of weights (run --io-trace): proof of what the disk did, and when.
//
// Text. First a line of JSON: {"millrace_io_trace":2,"model":...}; then a line for each read of a file that
// succeeded, in the order in which they ended: BEGIN END BYTES WANTED PIECE. Times are nanoseconds since the
// trace began; WANTED is when the computation began to wait for the piece, - when nobody waits for it.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "format/piece.h"
#include "stream/read_log.h"

namespace millrace::stream {

class IoTrace {
 public:
  // `table` must outlive it.
  static Expected<std::unique_ptr<IoTrace>> create(const std::string& path,
                                                   const std::string& model,
                                                   const format::PieceTable& table);
  ~IoTrace();
  IoTrace(const IoTrace&) = delete;
  IoTrace& operator=(const IoTrace&) = delete;

  void add(const ReadRecord& record);  // from any thread
  // Whether all was written; no add() may follow.
  Status close();

 private:
  IoTrace(std::FILE* file, std::string path, const format::PieceTable& table)
      : file_(file), path_(std::move(path)), table_(table), begin_ns_(ReadClock::now()) {}
  std::mutex mutex_;
  std::FILE* file_;
  std::string path_;
  const format::PieceTable& table_;
  uint64_t begin_ns_;
  bool failed_ = false;
};

}  // namespace millrace::stream
