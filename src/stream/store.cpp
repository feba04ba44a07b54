// The consumer's side of streaming: every decision (what is read, into which slot, what is given
// up) is taken here, in the consumer's own calls, so no lock guards slot state. Readers only fill
// slots and report back.
#include "stream/store.h"

#include <cassert>
#include <chrono>
#include <optional>

#include "base/numeric.h"
#include "stream/arena.h"
#include "stream/backend.h"
#include "stream/slots.h"

namespace millrace::stream {
namespace {

using format::PieceKind;
using Counters = StoreCounters;

class Store : public PieceStore {
 public:
  Store(const format::PieceTable& table, ResidencyPlan plan, Ledger& ledger, Arena arena,
        uint64_t io_bytes, const StoreOptions& options, Prefetch prefetch, PieceReader& reader)
      : table_(table),
        plan_(std::move(plan)),
        ledger_(ledger),
        arena_(std::move(arena)),
        io_bytes_(io_bytes),
        slots_(table, plan_, arena_, options.policy),
        prefetch_(std::move(prefetch)),
        reader_(reader),
        log_(table.pieces.size(), options.on_read) {
    reader_.watch(&log_);
    class_blocked_.resize(plan_.classes.size());
    fired_.reserve(256);
    pending_.reserve(256);
    ready_.reserve(256);
    in_flight_.reserve(kMostPrefetching);
  }

  // Gives the slots their memory and chooses who reads; before anything else is called.
  Status commit(const StoreOptions& options) {
    MILLRACE_TRY(slots_.resize(plan_, 0));
    count_streamed();
    size_t widest = 0;
    for (size_t c = 0; c < plan_.classes.size(); ++c) {
      if (plan_.slots_bytes(c) > plan_.slots_bytes(widest)) widest = c;
    }
    // With another budget any number of pieces may have slots.
    const uint32_t streamed = plan_.streamed_piece();
    const uint64_t read_bytes = streamed == kNone ? 0 : reader_.largest_read(streamed);
    ChosenBackend chosen =
        choose_backend(reader_, {.kind = options.backend,
                                 .depth = options.io_threads,
                                 .buffers = reader_.scratch_bytes() != 0 ? options.buffers : 0,
                                 .capacity = static_cast<uint32_t>(table_.pieces.size()),
                                 .arena = {arena_.region(widest), plan_.slots_bytes(widest)},
                                 .read_bytes = read_bytes,
                                 .watch = &log_});
    backend_ = std::move(chosen.backend);
    why_backend_ = std::move(chosen.reason);
    read_choice_ = std::move(chosen.known);
    most_ahead_ = 2 * chosen.depth;
    return {};
  }

  ~Store() override {
    backend_.reset();  // no read may outlive the arena
    reader_.watch(nullptr);
    ledger_.release(Use::kWeights, plan_.arena_bytes + rounding());
    ledger_.release(Use::kIo, io_bytes_);
  }

  Status load_pinned(const std::function<void(uint64_t, uint64_t)>& progress) override {
    drain();
    uint64_t done = 0, total = 0;
    uint32_t waiting = 0;
    for (uint32_t p = 0; p < table_.pieces.size(); ++p) {
      if (!plan_.pinned[p] || slots_[p].state == PieceState::kResident) continue;
      total += table_.pieces[p].bytes;
      ++waiting;
      if (slots_[p].state == PieceState::kAbsent) start(p, Urgency::kDemand);
    }
    std::optional<Error> error;
    while (waiting > 0) {
      const ReadResult result = wait_one();
      if (!plan_.pinned[result.piece]) continue;
      --waiting;
      done += table_.pieces[result.piece].bytes;
      if (!result.status && !error) {
        // Give up what has not started; what is in flight is still waited for.
        error = result.status.error();
        for (uint32_t p = 0; p < table_.pieces.size(); ++p) {
          if (plan_.pinned[p] && slots_[p].state == PieceState::kReading && cancel(p)) --waiting;
        }
      }
      if (progress && !error) progress(done, total);
    }
    if (error) return tl::make_unexpected(std::move(*error));
    return {};
  }

  Expected<const std::byte*> acquire(uint32_t piece) override {
    drain();
    slots_.used(piece);
    PieceEntry& entry = slots_[piece];
    const bool hit = entry.state == PieceState::kResident;
    if (table_.pieces[piece].kind == PieceKind::kExpert) {
      Counters::add(hit ? counters_.expert_hits : counters_.expert_misses);
    } else {
      Counters::add(hit ? counters_.scan_hits : counters_.scan_misses);
    }
    if (!hit) {
      log_.clock().want(piece);
      Status brought = bring(piece);
      if (!brought) {
        log_.clock().give_up(piece);
        return tl::make_unexpected(std::move(brought.error()));
      }
    }
    ++entry.holds;
    if (hit) read_ahead();
    return slots_.bytes(piece).data();
  }

  void will_acquire(std::span<const uint32_t> pieces) override {
    drain();
    pieces = pieces.first(std::min<size_t>(pieces.size(), most_ahead_));
    for (const uint32_t p : pieces) ++slots_[p].holds;  // none gives way to another one
    for (const uint32_t p : pieces) {
      if (slots_[p].state == PieceState::kAbsent && !start(p, Urgency::kDemand)) break;
    }
    for (const uint32_t p : pieces) --slots_[p].holds;
  }

  void release(uint32_t piece) override {
    PieceEntry& entry = slots_[piece];
    if (entry.holds == 0) return;  // a failed pass has taken it back already
    if (--entry.holds > 0) return;
    slots_.touch(piece);
    drain();
    start_pending();
    read_ahead();
    start_prefetch();
  }

  void begin_fired(std::span<const uint32_t> pieces, const FiredRows& rows) override {
    end_pass();  // one that its consumer gave up half-way
    drain();
    slots_.began(pieces, rows.all);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const uint32_t piece = pieces[i];
      PieceEntry& entry = slots_[piece];
      assert(!entry.fired && "a piece was fired twice in one pass");
      entry.fired = true;
      entry.rows = rows.each.empty() ? 1 : rows.each[i];
      fired_.push_back(piece);
      prefetch_.count_use(piece, entry.state == PieceState::kAbsent);
      if (entry.state != PieceState::kResident) log_.clock().want(piece);
      Counters::add(entry.state == PieceState::kResident ? counters_.expert_hits
                                                         : counters_.expert_misses);
      switch (entry.state) {
        case PieceState::kResident:
          ready_.push_back(piece);
          break;
        case PieceState::kReading:
          backend_->promote(piece);
          break;
        case PieceState::kAbsent:
          pending_.push_back(piece);
          break;
      }
    }
    left_ = static_cast<uint32_t>(pieces.size());
    prefetch_.fired(pieces);
    if (!pending_.empty()) cancel_prefetch();
    start_pending();
    start_prefetch();
    publish_prefetch();
  }

  Expected<bool> next_fired(Fired* fired) override {
    drain();
    while (left_ > 0) {
      if (pass_error_) return fail_pass(std::move(*pass_error_));
      if (next_ready_ < ready_.size()) {
        const uint32_t piece = ready_[next_ready_++];
        PieceEntry& entry = slots_[piece];
        entry.fired = false;  // the hold keeps it from here on
        ++entry.holds;
        --left_;
        *fired = {piece, slots_.bytes(piece).data()};
        return true;
      }
      start_pending();
      if (outstanding_ == 0) {
        return fail_pass(
            {Code::kInternal, fmt::format("{}: every expert slot is held by the consumer",
                                          table_.pieces[pending_.front()].name)});
      }
      wait_one();
    }
    end_pass();
    return false;
  }

  bool fired_ready() override {
    drain();
    return !pass_error_ && pending_.empty() && next_ready_ < ready_.size();
  }

  PrefetchKind prefetch() const override { return prefetch_.kind(); }
  std::string prefetch_choice() const override {
    if (!prefetch_.automatic()) return fmt::format("{}: asked for", name(prefetch_.kind()));
    return fmt::format("auto: chosen by the time that steps take; {} now", name(prefetch_.kind()));
  }
  void step_done(uint32_t rows, double seconds) override {
    const uint64_t misses = counters_.expert_misses.load(std::memory_order_relaxed);
    prefetch_.step(rows, seconds, misses != misses_before_);
    misses_before_ = misses;
  }
  void suggest(std::span<const uint32_t> pieces) override {
    prefetch_.suggest(pieces);
    drain();
    start_prefetch();
  }
  const std::byte* peek(uint32_t piece) const override {
    return slots_[piece].state == PieceState::kResident ? slots_.bytes(piece).data() : nullptr;
  }

  Status resize(ResidencyPlan plan, uint64_t most_moved) override {
    end_pass();
    prefetch_.forget();
    cancel_prefetch();
    for (uint32_t p = 0; p < table_.pieces.size(); ++p)
      if (slots_[p].state == PieceState::kReading) cancel(p);
    while (outstanding_ > 0) wait_one();
    const uint64_t old = plan_.arena_bytes;
    const uint64_t more = plan.arena_bytes > old ? plan.arena_bytes - old : 0;
    MILLRACE_TRY(ledger_.reserve(Use::kWeights, more));
    for (size_t c = 0; c < plan_.classes.size(); ++c) {
      const uint64_t before = plan_.slots_bytes(c), after = plan.slots_bytes(c);
      if (after >= before) continue;
      // With all of the huge page at the new end: one with a pinned part cannot be split.
      const uint64_t from = after / Arena::kHugePage * Arena::kHugePage;
      backend_->forget({arena_.region(c) + from, before - from});
    }
    if (Status resized = slots_.resize(plan, most_moved); !resized) {
      plan_ = lesser_plan(plan_, plan);
      ledger_.release(Use::kWeights, old + more - plan_.arena_bytes);
      count_streamed();
      return resized;
    }
    if (plan.arena_bytes < old) ledger_.release(Use::kWeights, old - plan.arena_bytes);
    plan_ = std::move(plan);
    count_streamed();
    return {};
  }

  StoreStats stats() const override {
    StoreStats s;
    const ReadClock::Times times = log_.clock().times();
    s.busy_ns = times.busy_ns;
    s.idle_ns = times.idle_ns;
    s.bytes_read = backend_->bytes_read();
    s.reads = backend_->reads();
    counters_.write_to(&s);
    return s;
  }

  const ResidencyPlan& plan() const override { return plan_; }
  const std::string& pages() const override { return arena_.pages(); }

  std::string reading() const override {
    return fmt::format("{} ({})", backend_->describe(), why_backend_);
  }
  const ReadChoice& read_choice() const override { return read_choice_; }

 private:
  // ---- reads
  // -----------------------------------------------------------------------------------------------

  // False when the class has no room.
  bool start(uint32_t piece, Urgency urgency) {
    if (!slots_.place(piece, urgency == Urgency::kAhead)) return false;
    backend_->submit({piece, slots_.bytes(piece), urgency});
    ++outstanding_;
    return true;
  }

  bool cancel(uint32_t piece) {
    if (!backend_->cancel(piece)) return false;
    slots_.drop(piece);
    --outstanding_;
    log_.clock().give_up(piece);
    return true;
  }

  void settle(const ReadResult& result) {
    --outstanding_;
    const uint32_t piece = result.piece;
    PieceEntry& entry = slots_[piece];
    log_.clock().give_up(piece);  // if it became wanted after its read had ended
    if (result.status) {
      slots_.arrived(piece);
      if (entry.pinned && entry.scan_at != kNone) --unread_pinned_;
      if (entry.fired) ready_.push_back(piece);
      return;
    }
    slots_.drop(piece);
    if (entry.fired && !pass_error_) pass_error_ = result.status.error();
  }

  void drain() {
    ReadResult result;
    while (outstanding_ > 0 && backend_->reap(&result, false)) settle(result);
  }

  ReadResult wait_one() {
    using Clock = std::chrono::steady_clock;
    assert(outstanding_ > 0);
    ReadResult result;
    const auto begin = Clock::now();
    backend_->reap(&result, true);
    Counters::add(counters_.stall_ns,
                  static_cast<uint64_t>((Clock::now() - begin) / std::chrono::nanoseconds(1)));
    settle(result);
    return result;
  }

  // Waits until an absent piece, or one being read, is resident.
  Status bring(uint32_t piece) {
    const PieceEntry& entry = slots_[piece];
    const uint32_t c = plan_.class_of[piece];
    while (entry.state == PieceState::kAbsent && !start(piece, Urgency::kDemand)) {
      // Every slot is held or being filled. Reads that have not started are not worth waiting for.
      if (cancel_farthest(c)) continue;
      if (!slots_.any_reading(c, [](uint32_t) { return true; })) {
        return fail(Code::kInternal, "{}: every slot of its class is held by the consumer",
                    table_.pieces[piece].name);
      }
      wait_one();
    }
    if (entry.state == PieceState::kReading) backend_->promote(piece);
    read_ahead();
    while (entry.state == PieceState::kReading) {
      const ReadResult result = wait_one();
      if (result.piece == piece && !result.status) return result.status;
    }
    return {};
  }

  // Takes a slot of the class back from a queued read that nobody asked for.
  bool cancel_farthest(uint32_t c) {
    uint32_t tried = kNone;
    for (;;) {
      uint32_t farthest = kNone;
      slots_.any_reading(c, [&](uint32_t p) {
        const bool before = tried == kNone || farther(tried, p);
        if (!slots_[p].fired && before && (farthest == kNone || farther(p, farthest))) farthest = p;
        return false;
      });
      if (farthest == kNone) return false;
      if (cancel(farthest)) return true;
      tried = farthest;
    }
  }

  // A total order on pieces of a class: by next use, where it is known.
  bool farther(uint32_t a, uint32_t b) const {
    if (slots_[a].scan_at != kNone) return slots_.distance(a) > slots_.distance(b);
    return a > b;
  }

  // Reads scanned pieces before they are needed, nearest first, into slots whose pieces are needed
  // later still.
  void read_ahead() {
    if (unread_pinned_ == 0 && streamed_classes_ == 0) return;
    ++stamp_;
    uint32_t blocked = 0;
    const auto n = static_cast<uint32_t>(plan_.scan.size());
    const uint32_t cursor = slots_.cursor();
    for (uint32_t step = 0; step < n; ++step) {
      if (blocked == streamed_classes_ && unread_pinned_ == 0) return;
      const uint32_t at = cursor + step < n ? cursor + step : cursor + step - n;
      const uint32_t piece = plan_.scan[at];
      const PieceEntry& entry = slots_[piece];
      const uint32_t c = plan_.class_of[piece];
      if (entry.state != PieceState::kAbsent || class_blocked_[c] == stamp_) continue;
      // Look-ups in a tied embedding come at the start of a pass; until then its slots are better
      // left alone.
      if (entry.lookup && (cursor == 0 || at < cursor)) continue;
      if (entry.pinned) {
        // Only before everything pinned was read once. Few at a time: those nearer must not queue
        // behind them.
        if (outstanding_ < most_ahead_) start(piece, Urgency::kAhead);
      } else if (!start(piece, Urgency::kAhead)) {
        class_blocked_[c] = stamp_;
        ++blocked;
      }
    }
  }

  void count_streamed() {
    unread_pinned_ = streamed_classes_ = 0;
    for (const uint32_t p : plan_.scan)
      unread_pinned_ += plan_.pinned[p] && slots_[p].state != PieceState::kResident;
    for (const SlotClass& c : plan_.classes) {
      const bool scanned = c.kind != PieceKind::kExpert && c.kind != PieceKind::kLookup &&
                           (c.kind != PieceKind::kEmbedding || has_lookups());
      if (scanned && c.shared > 0) ++streamed_classes_;
    }
  }

  uint64_t rounding() const { return arena_.rounding() * plan_.classes.size(); }

  bool has_lookups() const {
    return !plan_.scan.empty() && table_.pieces[plan_.scan.back()].kind == PieceKind::kEmbedding;
  }

  // ---- prefetch

  // Begins reads that were suggested while nothing else is read; the policy's choice gives way, but
  // nothing that was suggested itself.
  void start_prefetch() {
    if (prefetch_.suggested().empty()) return;
    if (outstanding_ > prefetching() || !pending_.empty()) return;
    const auto suggested = prefetch_.suggested();
    uint32_t reading = prefetching();
    for (const uint32_t piece : suggested) {
      if (reading >= kMostPrefetching) break;
      if (slots_[piece].state != PieceState::kAbsent) continue;
      for (const uint32_t p : suggested) ++slots_[p].holds;
      const bool placed = slots_.place(piece, false);
      for (const uint32_t p : suggested) --slots_[p].holds;
      if (!placed) break;
      backend_->submit({piece, slots_.bytes(piece), Urgency::kAhead});
      ++outstanding_;
      ++reading;
      prefetch_.issued(piece);
      in_flight_.push_back(piece);
    }
    if (reading < kMostPrefetching) prefetch_.forget();  // all begun, or there is no room
    publish_prefetch();
  }
  void publish_prefetch() { counters_.publish(prefetch_.stats()); }
  // Of the reads that were begun ahead, those that have not ended or become a demand.
  uint32_t prefetching() {
    std::erase_if(in_flight_, [this](uint32_t p) {
      return slots_[p].state != PieceState::kReading || slots_[p].fired;
    });
    return static_cast<uint32_t>(in_flight_.size());
  }
  // Fired pieces need the disk: what has not begun gives its slot back.
  void cancel_prefetch() {
    for (const uint32_t piece : in_flight_) {
      if (slots_[piece].state != PieceState::kReading || slots_[piece].fired) continue;
      if (cancel(piece)) prefetch_.cancelled(piece);
    }
    in_flight_.clear();
  }

  // ---- fired experts
  // ---------------------------------------------------------------------------------------

  // Starts the reads of fired pieces for which there is room, in the order in which they were
  // fired.
  void start_pending() {
    if (pending_.empty()) return;
    ++stamp_;
    size_t kept = 0;
    for (uint32_t piece : pending_) {
      const uint32_t c = plan_.class_of[piece];
      if (class_blocked_[c] != stamp_ && start(piece, Urgency::kDemand)) continue;
      class_blocked_[c] = stamp_;
      pending_[kept++] = piece;
    }
    pending_.resize(kept);
  }

  tl::unexpected<Error> fail_pass(Error error) {
    for (uint32_t piece : fired_) slots_[piece].holds = 0;
    end_pass();
    return tl::make_unexpected(std::move(error));
  }

  void end_pass() {
    for (uint32_t piece : fired_) {
      PieceEntry& entry = slots_[piece];
      if (!entry.fired) continue;
      entry.fired = false;
      log_.clock().give_up(piece);
      if (entry.state == PieceState::kReading) cancel(piece);
    }
    fired_.clear();
    pending_.clear();
    ready_.clear();
    next_ready_ = 0;
    left_ = 0;
    pass_error_.reset();
  }

  const format::PieceTable& table_;
  ResidencyPlan plan_;
  Ledger& ledger_;
  Arena arena_;
  const uint64_t io_bytes_;
  SlotTable slots_;
  Prefetch prefetch_;
  PieceReader& reader_;
  ReadLog log_;
  std::unique_ptr<ReadBackend> backend_;
  std::string why_backend_;
  ReadChoice read_choice_;
  uint32_t most_ahead_ = 0;
  StoreCounters counters_;

  uint32_t outstanding_ = 0;             // submitted and not yet settled
  uint32_t unread_pinned_ = 0;           // scanned pieces with their own slot, not read yet
  uint32_t streamed_classes_ = 0;        // scanned classes that are not resident as a whole
  std::vector<uint64_t> class_blocked_;  // == stamp_: no room found in the present walk
  uint64_t stamp_ = 0;

  static constexpr uint32_t kMostPrefetching = 2;  // reads at a time: a demand waits for few
  std::vector<uint32_t> in_flight_;                // prefetched and perhaps still being read
  uint64_t misses_before_ = 0;

  std::vector<uint32_t> fired_;    // of the present pass
  std::vector<uint32_t> pending_;  // fired, no room yet
  std::vector<uint32_t>
      ready_;  // fired and resident, in the order to hand out; [next_ready_, end) are left
  size_t next_ready_ = 0;
  uint32_t left_ = 0;  // fired and not yet handed out
  std::optional<Error> pass_error_;
};

}  // namespace

Expected<std::unique_ptr<PieceStore>> PieceStore::create(const format::PieceTable& table,
                                                         ResidencyPlan plan, PieceReader& reader,
                                                         Ledger& ledger,
                                                         const StoreOptions& options) {
  if (plan.class_of.size() != table.pieces.size() || plan.pinned.size() != table.pieces.size()) {
    return fail(Code::kInternal, "the residency plan is for another piece table");
  }
  for (size_t p = 0; p < table.pieces.size(); ++p) {
    if (table.pieces[p].bytes > plan.classes[plan.class_of[p]].slot_bytes) {
      return fail(Code::kInternal, "{}: larger than its slot", table.pieces[p].name);
    }
  }
  MILLRACE_ASSIGN(Prefetch prefetch, Prefetch::create(table, options.prefetch));
  // Where each read takes a buffer, their number was decided with all other sizes.
  const unsigned buffers = options.io_threads != 0 ? options.io_threads : options.buffers;
  const uint64_t io_bytes = buffers * round_up(reader.scratch_bytes(), 4096);
  MILLRACE_ASSIGN(Arena arena, Arena::reserve(SlotTable::regions(plan), options.arena));
  const uint64_t weights = plan.arena_bytes + arena.rounding() * plan.classes.size();
  MILLRACE_TRY(ledger.reserve(Use::kWeights, weights));
  if (Status io = ledger.reserve(Use::kIo, io_bytes); !io) {
    ledger.release(Use::kWeights, weights);
    return tl::make_unexpected(std::move(io.error()));
  }
  auto store = std::make_unique<Store>(table, std::move(plan), ledger, std::move(arena), io_bytes,
                                       options, std::move(prefetch), reader);
  MILLRACE_TRY(store->commit(options));
  return store;
}

}  // namespace millrace::stream
