#include "stream/trace.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace millrace::stream {
namespace {

// Replays keep some arrays of this many entries. The largest models have some 25,000 experts.
constexpr uint64_t kMostExperts = uint64_t{1} << 20;

// The next number of `text`, and what stands behind it.
bool take_number(std::string_view& text, uint32_t* out) {
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<size_t>(after - text.data()));
  return true;
}

Expected<TraceHead> read_head(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  const auto number = [&json](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number_unsigned()
               ? json[key].get<uint64_t>()
               : 0;
  };
  if (number("millrace_trace") != 1)
    return fail(Code::kInvalid, "this is no trace of millrace (its first line says what it is)");
  TraceHead head;
  if (json.contains("model") && json["model"].is_string()) head.model = json["model"];
  const uint64_t layers = number("layers"), experts = number("experts"), used = number("used");
  if (layers == 0 || layers > 65536 || experts == 0 || experts > 65536 || used == 0 ||
      used > experts)
    return fail(Code::kInvalid, "'layers', 'experts' or 'used' of the first line is out of range");
  if (layers * experts > kMostExperts) {
    return fail(Code::kInvalid,
                "{} layers of {} experts are more than the {} that a trace may have", layers,
                experts, kMostExperts);
  }
  head.layers = static_cast<uint32_t>(layers);
  head.experts = static_cast<uint32_t>(experts);
  head.used = static_cast<uint32_t>(used);
  head.expert_bytes = number("expert_bytes");
  return head;
}

Status read_pass(std::string_view line, const TraceHead& head, TracePass* pass) {
  if (!take_number(line, &pass->step) || line.empty() || line[0] != ' ')
    return fail(Code::kInvalid, "no step");
  if (pass->step == UINT32_MAX) return fail(Code::kInvalid, "step {} is too large", pass->step);
  line.remove_prefix(1);
  if (!take_number(line, &pass->layer)) return fail(Code::kInvalid, "no layer");
  if (pass->layer >= head.layers)
    return fail(Code::kInvalid, "layer {} of {}", pass->layer, head.layers);
  while (!line.empty()) {
    const bool row_begins = line[0] == ' ';
    if (!row_begins && line[0] != ',') return fail(Code::kInvalid, "'{}' is no expert", line[0]);
    if (row_begins != (pass->experts.size() % head.used == 0))
      return fail(Code::kInvalid, "a row does not have {} experts", head.used);
    line.remove_prefix(1);
    uint32_t expert = 0;
    if (!take_number(line, &expert) || expert >= head.experts)
      return fail(Code::kInvalid, "an expert is not below {}", head.experts);
    pass->experts.push_back(expert);
  }
  if (pass->experts.empty() || pass->experts.size() % head.used != 0)
    return fail(Code::kInvalid, "a row does not have {} experts", head.used);
  return {};
}

}  // namespace

Expected<Trace> read_trace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Code::kNotFound, "{}: cannot be opened: {}", path, std::strerror(errno));
  return read_trace(path, file);
}

Expected<Trace> read_trace(const std::string& path, std::istream& file) {
  Trace trace;
  std::string line;
  for (uint64_t number = 1; std::getline(file, line); ++number) {
    const auto wrong = [&](Error error) {
      error.message = fmt::format("{}: line {}: {}", path, number, error.message);
      return tl::make_unexpected(std::move(error));
    };
    if (number == 1) {
      auto head = read_head(line);
      if (!head) return wrong(std::move(head.error()));
      trace.head = std::move(*head);
      continue;
    }
    // The last line of a run that was killed may be cut.
    if (file.eof()) break;
    TracePass pass;
    auto status = read_pass(line, trace.head, &pass);
    if (!status) return wrong(std::move(status.error()));
    trace.passes.push_back(std::move(pass));
  }
  if (trace.passes.empty()) return fail(Code::kInvalid, "{}: no passes were recorded", path);
  return trace;
}

Expected<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path,
                                                           const TraceHead& head) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (!file) return fail(Code::kIo, "{}: cannot be written: {}", path, std::strerror(errno));
  const nlohmann::ordered_json json = {
      {"millrace_trace", 1},     {"model", head.model}, {"layers", head.layers},
      {"experts", head.experts}, {"used", head.used},   {"expert_bytes", head.expert_bytes}};
  const std::string line =
      json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::unique_ptr<TraceWriter> writer(new TraceWriter(file, path, head.used));
  if (std::fputs(line.c_str(), file) < 0) writer->failed_ = true;
  return writer;
}

TraceWriter::~TraceWriter() { (void)close(); }

void TraceWriter::add(uint32_t layer, std::span<const uint32_t> chosen) {
  if (!file_) return;
  if (last_layer_ != UINT32_MAX && layer <= last_layer_) ++step_;
  last_layer_ = layer;
  std::string line = fmt::format("{} {}", step_, layer);
  for (size_t i = 0; i < chosen.size(); ++i)
    fmt::format_to(std::back_inserter(line), "{}{}", i % used_ == 0 ? ' ' : ',', chosen[i]);
  line += '\n';
  if (std::fputs(line.c_str(), file_) < 0) failed_ = true;
}

Status TraceWriter::close() {
  if (!file_) return {};
  if (std::fclose(std::exchange(file_, nullptr)) != 0) failed_ = true;
  if (failed_) return fail(Code::kIo, "{}: the trace could not be written whole", path_);
  return {};
}

}  // namespace millrace::stream
