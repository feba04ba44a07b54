// A record of which experts fired: what a run wrote (run --trace), for replays.
//
// Text. First a line of JSON: {"millrace_trace":1,"model":...,"layers":L,"experts":E,"used":K,
// "expert_bytes":B}; then a line for each pass over a layer: STEP LAYER ROW ROW ..., a ROW being the
// experts of one row, best first: 3,17,5. Steps count passes over the model from 0.
#pragma once

#include <cstdint>
#include <cstdio>
#include <istream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::stream {

struct TraceHead {
  std::string model;
  uint32_t layers = 0, experts = 0, used = 0;
  uint64_t expert_bytes = 0;  // of one expert, the largest
};

struct TracePass {
  uint32_t step = 0, layer = 0;
  std::vector<uint32_t> experts;  // [rows, used]
};

struct Trace {
  TraceHead head;
  std::vector<TracePass> passes;
};

// The error names the file and the line.
Expected<Trace> read_trace(const std::string& path);
Expected<Trace> read_trace(const std::string& path, std::istream& text);

class TraceWriter {
 public:
  static Expected<std::unique_ptr<TraceWriter>> create(const std::string& path,
                                                       const TraceHead& head);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // chosen: [rows, used]. A step ends where a layer comes that is not behind the one before.
  void add(uint32_t layer, std::span<const uint32_t> chosen);
  // Whether all was written. Also called by the destructor, which cannot tell.
  Status close();

 private:
  TraceWriter(std::FILE* file, std::string path, uint32_t used)
      : file_(file), path_(std::move(path)), used_(used) {}
  std::FILE* file_;
  std::string path_;
  uint32_t used_;
  uint32_t step_ = 0, last_layer_ = UINT32_MAX;
  bool failed_ = false;
};

}  // namespace millrace::stream
