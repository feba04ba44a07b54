// pack, verify and unpack of the public API.
#include <chrono>

#include "api/model_impl.h"
#include "base/status.h"
#include "format/packed.h"

namespace millrace {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

PackReport report(const format::PackResult& result, std::chrono::steady_clock::time_point start) {
  return {result.pieces, result.bytes, seconds_since(start), result.resumed};
}

}  // namespace

Expected<PackReport> pack(const PackOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (format::is_packed_folder(options.source))
    return fail(Code::kInvalid, "{}: is packed already", options.source);
  MILLRACE_ASSIGN(const auto source, format::open_source(options.source));
  model::ModelSpec spec;
  format::PieceTable table;
  MILLRACE_TRY(build_model(source, &spec, &table, nullptr));
  format::PackJob job;
  job.source = &source;
  job.table = &table;
  job.architecture = spec.family;
  job.out = options.out;
  job.overwrite = options.overwrite;
  job.progress = options.progress;
  job.cancelled = options.cancelled;
  MILLRACE_ASSIGN(const auto result, format::pack_model(job));
  return report(result, start);
}

Expected<VerifyReport> verify(
    const std::string& path,
    const std::function<void(uint64_t, uint64_t, std::string_view)>& progress) {
  MILLRACE_ASSIGN(const auto result, format::verify_packed(path, progress));
  return VerifyReport{result.pieces, result.bytes};
}

Expected<PackReport> unpack(const PackOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (!format::is_packed_folder(options.source))
    return fail(Code::kInvalid, "{}: is not a packed folder", options.source);
  MILLRACE_ASSIGN(const auto packed, format::open_packed(options.source));
  model::ModelSpec spec;
  format::PieceTable table;
  MILLRACE_TRY(build_model(packed.source, &spec, &table, nullptr));
  MILLRACE_TRY(format::bind_packed(packed, &table));
  format::PackJob job;
  job.out = options.out;
  job.overwrite = options.overwrite;
  job.progress = options.progress;
  job.cancelled = options.cancelled;
  MILLRACE_ASSIGN(const auto result, format::unpack_model(packed, table, job));
  return report(result, start);
}

}  // namespace millrace
