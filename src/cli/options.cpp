#include "cli/options.h"

#include "base/status.h"
#include "cli/size.h"

namespace millrace::cli {
namespace {

constexpr const char* kGroup = "Memory, threads and disk";
constexpr unsigned kMostThreads = 1024;
constexpr uint32_t kMostContext = 1u << 24;
constexpr uint32_t kMostChunk = 1u << 16;

}  // namespace

std::string long_name(const std::string& names) {
  const size_t at = names.find("--");
  if (at == std::string::npos) return names;
  return names.substr(at, names.find(',', at) - at);
}

CLI::Option* add_size(CLI::App& app, const std::string& names, std::optional<uint64_t>& out,
                      const std::string& help) {
  const auto read = [&out, flag = long_name(names)](const std::string& text) {
    if (text == "auto") {
      out.reset();
      return;
    }
    auto bytes = parse_size(text);
    if (!bytes) usage_error(flag, bytes.error().message);
    out = *bytes;
  };
  return app.add_option_function<std::string>(names, read, help)
      ->type_name("SIZE")
      ->default_str("auto");
}

CLI::Option* add_model(CLI::App& app, std::string& model) {
  return app.add_option("MODEL", model, "A packed folder, a Hugging Face folder, or a .gguf file")
      ->required()
      ->type_name("");
}

void add_engine_flags(CLI::App& app, EngineOptions& options, EngineFlags which) {
  add_size(app, "--budget", options.budget,
           "Most memory for weights; the rest is read from disk when needed")
      ->group(kGroup);
  add_size(app, "--memory", options.memory,
           "Hard ceiling for the whole process: weights, KV, buffers. auto: what the machine and "
           "its cgroups leave")
      ->group(kGroup);
  add_number(app, "--threads", options.threads, 0u, kMostThreads,
             "Compute threads; 0: one for each processor we may use")
      ->group(kGroup);
  add_choice<ActivationPrecision>(
      app, "--activations", options.activations,
      {{"int8", ActivationPrecision::kInt8}, {"f32", ActivationPrecision::kF32}},
      "Activations of quantized weights: int8 is fast, f32 is the reference")
      ->group(kGroup)
      ->default_str(options.activations == ActivationPrecision::kF32 ? "f32" : "int8");
  add_number(app, "--prefill-chunk", options.prefill_chunk, 0u, kMostChunk,
             "Prompt tokens in one pass; 0: chosen to fit")
      ->group(kGroup);
  add_choice<KvPrecision>(
      app, "--kv", options.kv,
      {{"f16", KvPrecision::kF16},
       {"q8", KvPrecision::kQ8},
       {"q4", KvPrecision::kQ4},
       {"f32", KvPrecision::kF32}},
      "Precision of the KV cache: q8 takes half of f16, q4 a quarter; f16 unless "
      "activations are f32")
      ->group(kGroup);
  add_choice<IoMode>(
      app, "--io", options.io,
      {{"auto", IoMode::kAuto}, {"direct", IoMode::kDirect}, {"buffered", IoMode::kBuffered}},
      "How weights are read: direct bypasses the page cache, buffered uses it")
      ->group(kGroup)
      ->default_str("auto");
  add_number(app, "--io-threads", options.io_threads, 0u, kMostThreads,
             "Reads in flight at a time; 0: chosen by a measurement")
      ->group(kGroup);
  add_choice<IoBackend>(
      app, "--io-backend", options.io_backend,
      {{"auto", IoBackend::kAuto},
       {"pread", IoBackend::kPread},
       {"uring", IoBackend::kUring},
       {"io_uring", IoBackend::kUring}},
      "Who reads: a pool of threads, or io_uring; auto: the faster one on this disk")
      ->group(kGroup)
      ->default_str("auto");
  app.add_option("--mirror", options.mirrors,
                 "A folder with a whole copy of the model on another disk (or the copy of a single "
                 "file): both are read at once, and if one fails the other serves. May be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false)
      ->group(kGroup);
  app.add_flag("--verify-reads", options.verify_reads,
               "Check the hash at every read, not only at the first of each piece (packed models)")
      ->group(kGroup);
  add_choice<HugePages>(
      app, "--huge-pages", options.huge_pages,
      {{"auto", HugePages::kAuto}, {"off", HugePages::kOff}, {"on", HugePages::kOn}},
      "Pages of the weights: auto takes transparent huge ones, on asks for explicit ones")
      ->group(kGroup)
      ->default_str("auto");
  app.add_flag("--mlock", options.mlock, "Keep the weights that are in memory from being swapped")
      ->group(kGroup);
  add_choice<bool>(
      app, "--pressure", options.relieve, {{"auto", true}, {"off", false}},
      "While the system runs short of memory: auto gives some of the weights' memory back")
      ->group(kGroup)
      ->default_str("auto");
  std::vector<Choice<std::string>> names;
  for (const std::string& name : policies()) names.push_back({name, name});
  add_choice<std::string>(app, "--policy", options.policy, names,
                          "Which expert gives way to another")
      ->group(kGroup)
      ->default_str(policies().front());
  add_choice<std::string>(
      app, "--prefetch", options.prefetch,
      {{"auto", "auto"}, {"off", "off"}, {"temporal", "temporal"}, {"router", "router"}},
      "Read experts ahead while the disk rests: what fired last, or what the next router says of "
      "this layer's input")
      ->group(kGroup)
      ->default_str("auto");
  auto* kernels = app.add_option("--kernels", options.kernels,
                                 "At most this instruction set: scalar, avx2, avx512, avx512_vnni, "
                                 "neon, neon_dotprod, neon_i8mm (gives the same bytes)");
  kernels->type_name("SET")->group(kGroup)->default_str("the best");
  app.add_flag_callback(
         "--scalar", [&options] { options.kernels = "scalar"; },
         "Portable kernels only (slow; gives the same bytes, for checking)")
      ->group(kGroup)
      ->excludes(kernels);
  if (which == EngineFlags::kAll) {
    add_number(app, "--context", options.context, 0u, kMostContext,
               "Most positions of prompt and answer together; 0: chosen to fit")
        ->group(kGroup);
  }
}

std::vector<Token> parse_ids(const std::string& flag, const std::string& text,
                             std::string_view what) {
  std::vector<Token> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  const auto skip_spaces = [&] {
    while (at != end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) ++at;
  };
  for (skip_spaces(); at != end; skip_spaces()) {
    Token id = 0;
    const auto [after, error] = std::from_chars(at, end, id);
    if (error != std::errc{} || id < 0)
      usage_error(flag, fmt::format("'{}' is not a list of {} such as 1,2,3", text, what));
    ids.push_back(id);
    at = after;
    skip_spaces();
    if (at == end) break;
    if (*at != ',') usage_error(flag, fmt::format("'{}' needs commas between the {}", text, what));
    ++at;
  }
  if (ids.empty()) usage_error(flag, fmt::format("the list of {} is empty", what));
  return ids;
}

}  // namespace millrace::cli
