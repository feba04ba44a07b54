// Millrace as a library: open a model under a memory ceiling, submit requests, step, read events.
//
//   auto engine = millrace::Engine::open({.model = "path/to/model"});
//   if (!engine) die(engine.error().message);
//   auto id = (*engine)->submit({.prompt = "Hello", .max_tokens = 32});
//   while (*(*engine)->step([](const millrace::Event& e) { std::cout << e.text; })) {}
//
// Exactness: for a given model file, request and seed the token ids are the same bytes whatever the
// budget, thread count, prefill chunk, packing, or other requests in the step.
// Threads: an Engine is used by one thread at a time. No call throws; errors are values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/status.h"

namespace millrace {

using Token = int32_t;

enum class ActivationPrecision : uint8_t {
  kInt8,  // activations of quantized weights are rounded to int8 with a scale for each 32 values
  kF32,   // reference precision everywhere
};
// Of cached keys and values. kQ8 and kQ4 are codes of 8 and 4 bits with an f16 scale for 32 channels
// (8.5 and 4.5 bits); kQ4 is refused for models with latent attention.
enum class KvPrecision : uint8_t { kF16, kF32, kQ8, kQ4 };
enum class IoMode : uint8_t { kAuto, kDirect, kBuffered };
enum class IoBackend : uint8_t { kAuto, kPread, kUring };

namespace io {
class ReadHook;
}
enum class HugePages : uint8_t {
  kAuto,  // transparent ones, where the kernel gives them
  kOff,
  kOn,  // explicit ones (vm.nr_hugepages) if any are free, else as kAuto
};

struct EngineOptions {
  std::string model;               // a packed folder, a Hugging Face folder, or a .gguf
  std::optional<uint64_t> memory;  // hard ceiling for the process, bytes; none: derived from
                                   // physical memory and cgroup limits
  std::optional<uint64_t> budget;  // bound of the weights arena alone, bytes
  unsigned threads = 0;            // compute threads; 0: one for each processor we may use
  ActivationPrecision activations = ActivationPrecision::kInt8;
  std::optional<KvPrecision> kv;  // none: f16, or f32 when activations are f32
  uint32_t context = 0;  // most positions of one request; 0: derived from the model and the ceiling
  uint32_t max_requests = 1;   // requests that may hold KV at the same time
  uint32_t prefill_chunk = 0;  // prompt rows in a step; 0: derived from the ceiling
  IoMode io = IoMode::kAuto;
  IoBackend io_backend = IoBackend::kAuto;  // who reads; auto: the faster one on this disk
  unsigned io_threads = 0;                  // reads in flight; 0: chosen
  bool preload =
      false;  // read all that stays in memory before open() returns, not with its first use
  bool verify_reads = false;  // check the hash at every read, not only at the first of each piece
  // Folders with copies of the model's files, read beside it (of a single file: or the copy itself).
  std::vector<std::string> mirrors;
  HugePages huge_pages = HugePages::kAuto;  // of the weights arena
  bool mlock = false;                       // keep the weights arena from being swapped out
  bool relieve = true;            // give weights' memory back while the system is short of memory
  std::string system_root = "/";  // where proc and sys tell about that: another folder in tests
  std::string kernels;  // at most this instruction set ("scalar", "avx2"), for checking; empty: any
  std::string policy;   // which expert gives way to another: one of policies(); empty: the default
  std::string trace;    // a file to record which experts fire, for replay(); empty: none
  std::string io_trace;  // a file to record every read of weights; empty: none
  std::string prefetch;  // of experts: "auto" (or empty), "off", "temporal", "router"
  std::function<void(std::string_view)> log;   // what was chosen, one line each
  std::function<void(std::string_view)> warn;  // what went wrong and was survived, one line each
  io::ReadHook* read_hook = nullptr;           // for tests: faults of the disk
};

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  float top_p = 1.0f;
  uint32_t top_k = 0;  // 0: off
  float min_p = 0.0f;
  uint64_t seed = 0;
};

struct Request {
  std::string
      prompt;  // used when prompt_ids is empty; special tokens are added as the tokenizer says
  std::vector<Token> prompt_ids;
  SamplingParams sampling;
  uint32_t max_tokens = 128;
  bool ignore_eos = false;
  std::vector<std::string> stop;  // text that ends the output (not emitted)
  uint32_t logits_top = 0;        // events carry the n largest logits of each position
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogit {
  Token id;
  float logit;
};

struct Event {
  uint64_t request = 0;
  std::optional<Token> token;   // one committed token
  std::string_view text;        // text that became complete with it (whole UTF-8 characters)
  std::vector<TokenLogit> top;  // with Request::logits_top
  FinishReason finish = FinishReason::kNone;
  const Error* error = nullptr;  // with kError
  uint32_t prompt_done = 0;      // prompt positions processed so far
  uint32_t prompt_total = 0;
};

struct Timings {
  double load_s = 0, prefill_s = 0, decode_s = 0, ttft_s = 0;
  uint64_t prompt_tokens = 0, generated_tokens = 0;
};

struct MemoryReport {
  uint64_t ceiling = 0;  // bytes this process may use
  uint64_t arena = 0;    // weights arena
  uint64_t kv = 0;
  uint64_t activations = 0;
  uint64_t process = 0;   // reserved for code, tokenizer, tables
  uint64_t peak_rss = 0;  // VmHWM
  std::string error;      // why the last change of limits could not be made; empty: it was, or none
  uint64_t changes = 0;   // of limits, or because of pressure, so far
  double longest_change_s = 0;  // and how long the longest of them held up a step
};

// What was given back because memory ran short (EngineOptions::relieve).
struct PressureReport {
  std::string watching;        // which signs of the kernel; "nothing: ..." where there are none
  uint64_t warnings = 0;       // times memory was given back because the kernel warned
  uint64_t criticals = 0;      // and because it was at a standstill
  uint64_t bytes_shed = 0;     // of weights, in all
  uint64_t given_up = 0;       // of weights now; it comes back when memory is there again
  uint64_t cache_dropped = 0;  // bytes of the model's files that the page cache was asked to drop
};

struct IoReport {
  std::string mode;         // "direct" or "buffered"
  std::string backend;      // "pread pool, 4 reads in flight"
  bool uring = false;       // io_uring reads, not threads
  unsigned depth = 0;       // reads in flight at most
  uint64_t read_bytes = 0;  // of most reads while streaming; 0: nothing is read again
  uint64_t bytes_read = 0, reads = 0;
  uint64_t expert_hits = 0, expert_misses = 0;
  double stall_s = 0;  // compute waited for the disk
  double busy_s = 0;   // at least one read was in flight
  double idle_s = 0;   // none was, although a piece was needed that was not there
  // Experts read before their router had spoken: reads begun; the piece fired while it was there or
  // on its way; it was given up before; the read gave way before it had begun.
  uint64_t prefetch_issued = 0, prefetch_used = 0, prefetch_wasted = 0, prefetch_cancelled = 0;
};

// How a model lies under a ceiling; made before any weight is read.
struct Plan {
  std::string architecture, format;  // "qwen3_moe", "affine4"
  uint64_t parameters = 0;
  uint64_t total_bytes = 0;  // all pieces
  struct Kind {
    std::string name;
    uint64_t pieces = 0, bytes = 0, resident_bytes = 0;
    bool pinned = false;
  };
  std::vector<Kind> kinds;  // embedding, mixer, ffn, router, expert, head
  uint64_t ceiling = 0, budget = 0, kv_bytes = 0, activation_bytes = 0, process_bytes = 0;
  uint64_t smallest_budget = 0;     // the least that runs
  uint64_t comfortable_budget = 0;  // everything but experts pinned, and 40 % of the experts
  uint64_t smallest_memory = 0;     // the least --memory that runs
  uint32_t context = 0, prefill_chunk = 0;
  std::string prefill_why;       // why the chunk is as large as it is
  double bytes_per_token = 0;    // predicted, read from disk while decoding
  double touched_per_token = 0;  // weight bytes the kernels read for one token
  bool fits = false;             // false: `why` says what is missing
  std::string why;
  std::string warning;  // --memory is more than there is, and the ceiling is less; empty: it is not
};

struct ModelInfo {
  std::string name, architecture, path, format;
  uint32_t layers = 0, hidden = 0, vocab = 0, max_context = 0, experts = 0, experts_used = 0;
  uint64_t parameters = 0;
  bool packed = false, has_chat_template = false;
};

// Tokenizer, template and shape of a model; no weights.
class Model {
 public:
  static Expected<std::shared_ptr<Model>> open(const std::string& path);
  ~Model();
  const ModelInfo& info() const;
  Expected<std::vector<Token>> tokenize(std::string_view text, bool add_special = true,
                                        bool parse_special = true) const;
  Expected<std::string> detokenize(const std::vector<Token>& ids) const;
  // messages: JSON array of {role, content}; returns the rendered prompt (encode it with
  // add_special = false).
  Expected<std::string> apply_chat_template(const std::string& messages_json,
                                            bool add_generation_prompt = true) const;
  const std::vector<Token>& stop_tokens() const;

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  friend class Engine;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What open() would do, without reading weights. `disk_bytes_per_s` and `memory_bytes_per_s` are
// not needed here.
Expected<Plan> make_plan(const Model& model, const EngineOptions& options);

// Which of equally scored positions sparse attention takes. kReference, for checks only, takes those
// that PyTorch's torch.topk takes in a text of this length: an order that its documentation leaves
// open and that depends on the text's length, so it is no order to generate with.
enum class TieOrder : uint8_t { kLowerPosition, kReference };

// A forward pass to be timed: `rows` consecutive positions of one sequence behind `depth` others.
struct StepShape {
  uint32_t rows = 1;
  uint32_t depth = 0;
  bool all_logits = false;  // of every row, as a verify pass wants them; else of the last alone
};

class Engine {
 public:
  static Expected<std::unique_ptr<Engine>> open(const EngineOptions& options);
  ~Engine();
  const Model& model() const;
  const Plan& plan() const;

  // Checks the request and queues it; it joins at the next step boundary.
  Expected<uint64_t> submit(Request request);
  void cancel(uint64_t request);

  // One forward pass over rows of the active requests. False when there is nothing left to do.
  Expected<bool> step(const std::function<void(const Event&)>& on_event);

  // Convenience: submits, steps until that request ends, returns its tokens.
  struct Completion {
    std::vector<Token> prompt_ids, token_ids;
    std::string text;
    FinishReason finish = FinishReason::kNone;
    Timings timings;
  };
  Expected<Completion> generate(Request request,
                                const std::function<bool(const Event&)>& on_event = {});

  // Teacher forcing: logits [ids.size(), vocab] of a whole sequence, row by row in order, without
  // touching other requests.
  Status score(const std::vector<Token>& ids,
               const std::function<void(uint32_t position, const float* logits)>& on_row,
               TieOrder ties = TieOrder::kLowerPosition);

  // Seconds of each of `repeats` passes of that shape, one behind the other in a sequence of its own
  // (so the depth grows by `rows` each time), on random tokens. Rows beyond the prefill chunk run in
  // several passes, which are timed as one. The keys and values of the first `depth` positions are
  // made up: only their cost is real. Other requests are not touched.
  Expected<std::vector<double>> time_steps(const StepShape& shape, uint32_t repeats,
                                           uint64_t seed = 0);

  // Other limits while the engine runs; none: as in EngineOptions. Any thread may ask, between steps
  // or during one. What cannot run is refused at once, with the least that does, and changes nothing.
  // The rest takes effect at the next step boundary (the next call of step(), generate(), score() or
  // time_steps(), or the next step in one), where EngineOptions::warn tells when the machine or a
  // cgroup has less memory than was asked for: weights are given up by policy and their memory goes back
  // to the system, or more of them stay. Requests go on, and their output is the same bytes. KV and
  // buffers keep the size they were opened with.
  Status set_memory(std::optional<uint64_t> bytes);
  Status set_budget(std::optional<uint64_t> bytes);

  MemoryReport memory() const;
  PressureReport pressure() const;
  IoReport io() const;
  // Ends the traces; an error when not all was written. Without one: nothing.
  Status finish_trace();
  std::map<std::string, std::string> choices() const;  // kernels, io mode, policy, kv, ...

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct PackOptions {
  std::string source, out;
  bool overwrite = false;
  std::function<void(uint64_t done, uint64_t total, std::string_view what)> progress;
  std::function<bool()> cancelled;
};
struct PackReport {
  uint64_t pieces = 0, bytes = 0;
  double seconds = 0;
  bool resumed = false;
};
Expected<PackReport> pack(const PackOptions& options);

struct VerifyReport {
  uint64_t pieces = 0, bytes = 0;
};
// Every hash of a packed folder; the error names file, piece and offset of the first mismatch.
Expected<VerifyReport> verify(
    const std::string& path,
    const std::function<void(uint64_t, uint64_t, std::string_view)>& progress = {});

// Writes the source files back, byte for byte, and checks them against the recorded hashes.
Expected<PackReport> unpack(const PackOptions& options);

// Policies that choose which expert to give up for another, the default first.
std::vector<std::string> policies();

// Runs policies over a trace that EngineOptions::trace recorded, at several sizes.
struct ReplayOptions {
  std::string trace;
  std::vector<std::string> policies;  // empty: all
  std::vector<double> shares;         // of all experts resident, 0 .. 1
  std::vector<uint32_t> slots;        // and numbers of resident experts
  uint32_t skip_steps = 0;            // passes over the model that warm up and are not counted
};
struct ReplayRow {
  std::string policy;  // "belady": the best that any policy could reach, knowing the future
  double share = 0;
  uint32_t slots = 0;
  uint64_t uses = 0, hits = 0;
};
struct ReplayReport {
  std::string model;
  uint32_t layers = 0, experts = 0, used = 0, steps = 0;
  uint64_t expert_bytes = 0;
  std::vector<ReplayRow> rows;  // by share, then by slots, belady first
};
Expected<ReplayReport> replay(const ReplayOptions& options);

// One row for each family this build runs: its names, what its layers are made of, what is read
// from the disk at a time, what is kept of a sequence, what a drafter may ask for, and the reference
// models it is checked with.
struct FamilyInfo {
  std::string name, aliases, gguf, mixer, ffn, streaming, kv, drafter_ports, fixtures;
};
std::vector<FamilyInfo> families();

std::string_view version();
std::string_view name(FinishReason reason);  // "stop", "length", ...

}  // namespace millrace
