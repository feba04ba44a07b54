#include "stream/io_trace.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace millrace::stream {

Expected<std::unique_ptr<IoTrace>> IoTrace::create(const std::string& path,
                                                   const std::string& model,
                                                   const format::PieceTable& table) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file)
    return fail(Code::kIo, "{}: the trace of reads cannot be written: {}", path,
                std::strerror(errno));
  std::unique_ptr<IoTrace> trace(new IoTrace(file, path, table));
  const nlohmann::ordered_json head = {{"millrace_io_trace", 2}, {"model", model}};
  trace->failed_ = std::fprintf(file, "%s\n", head.dump().c_str()) < 0;
  return trace;
}

IoTrace::~IoTrace() {
  if (file_) std::fclose(file_);
}

void IoTrace::add(const ReadRecord& r) {
  const std::string line =
      fmt::format("{} {} {} {} {}\n", r.begin_ns - begin_ns_, r.end_ns - begin_ns_, r.bytes,
                  r.wanted_ns == 0 ? std::string("-") : fmt::to_string(r.wanted_ns - begin_ns_),
                  table_.pieces[r.piece].name);
  std::lock_guard lock(mutex_);
  if (file_ && std::fwrite(line.data(), 1, line.size(), file_) != line.size()) failed_ = true;
}

Status IoTrace::close() {
  std::lock_guard lock(mutex_);
  if (!file_) return {};
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (failed_ || !closed) return fail(Code::kIo, "{}: could not be written whole", path_);
  return {};
}

}  // namespace millrace::stream
