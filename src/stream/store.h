// The piece store: hands out slots, reads what is missing, keeps what is in use.
//
// One consumer (the step loop) calls it; a pool of readers fills slots. A piece handed out stays where it is until
// it is released. Scanned pieces are read ahead of their use; of experts a policy
// chooses which to give up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/piece.h"
#include "stream/arena.h"
#include "stream/choose_backend.h"
#include "stream/ledger.h"
#include "stream/policy.h"
#include "stream/prefetch.h"
#include "stream/read_log.h"
#include "stream/reader.h"
#include "stream/residency.h"
#include "stream/store_counters.h"

namespace millrace::stream {

struct StoreOptions {
  unsigned io_threads = 4;  // reads in flight (and threads, where each takes one); 0: chosen
  ArenaOptions arena = {};
  PolicyKind policy = kDefaultPolicy;                   // of experts and an untied embedding
  std::string prefetch = "off";                         // "auto", or the name of a PrefetchKind
  std::function<void(const ReadRecord&)> on_read = {};  // of every read; called by several threads
  BackendKind backend = BackendKind::kPread;
  unsigned buffers =
      4;  // reads in flight where each takes a thread and a buffer and none are asked for
};

// How many of a pass's rows each fired piece serves: what policies weigh uses by. Without `each`: one.
struct FiredRows {
  std::span<const uint32_t> each = {};
  uint32_t all = 1;
};

class PieceStore {
 public:
  // Reserves and maps the arena. Nothing is read yet. `reader` and `table` must outlive the store.
  static Expected<std::unique_ptr<PieceStore>> create(const format::PieceTable& table,
                                                      ResidencyPlan plan, PieceReader& reader,
                                                      Ledger& ledger, const StoreOptions& options);
  virtual ~PieceStore() = default;

  // Reads every pinned piece (in parallel); optional: they are read on first use otherwise.
  // progress(done, total) in bytes may be empty.
  virtual Status load_pinned(const std::function<void(uint64_t, uint64_t)>& progress) = 0;

  // Waits until the piece is resident and hands it out; pair with release(). Reads ahead along the scan.
  virtual Expected<const std::byte*> acquire(uint32_t piece) = 0;
  virtual void release(uint32_t piece) = 0;
  // Pieces that will be acquired next, in this order: reads begin for as many as there is room for.
  virtual void will_acquire(std::span<const uint32_t> pieces) = 0;

  // Experts of one layer pass. Resident ones come first, then the others in the order in which they arrive. Any
  // number may be fired; when there are fewer slots, misses are read as earlier ones are released.
  //   begin_fired(pieces); while ((p = next_fired())) { compute; release(p->piece); }
  struct Fired {
    uint32_t piece = 0;
    const std::byte* data = nullptr;
  };
  virtual void begin_fired(std::span<const uint32_t> pieces, const FiredRows& rows = {}) = 0;
  // False in `more` once all were handed out. On error the pass is over: nothing stays pinned by it.
  virtual Expected<bool> next_fired(Fired* fired) = 0;
  // Whether next_fired() would hand out another one at once, and holding it delays no read: none waits
  // for a slot.
  virtual bool fired_ready() = 0;

  // Prefetch of experts. A step's time tells whether it pays.
  virtual PrefetchKind prefetch() const = 0;
  virtual std::string prefetch_choice() const = 0;  // for people
  virtual void step_done(uint32_t rows, double seconds) = 0;
  // Experts of the next layer that are likely to fire, likeliest first; read when the disk rests.
  virtual void suggest(std::span<const uint32_t> pieces) = 0;
  // The piece's bytes when it is resident, until the next call that may read; else null.
  virtual const std::byte* peek(uint32_t piece) const = 0;

  // Another budget, between passes: nothing may be handed out. `plan` is of the same table and demand.
  // Reads under way are given up or waited for. Pieces that stay may have to be copied, `most_moved`
  // bytes of them; the others are read again when they are needed. On error of the system, which has
  // no memory to grow, nothing has grown: plan() then is the smaller of both for each class of slots,
  // so at most what it was, and it can run. On any other error nothing has changed.
  virtual Status resize(ResidencyPlan plan, uint64_t most_moved) = 0;

  virtual StoreStats stats() const = 0;
  // How the arena's pages lie: "transparent", "none: turned off, locked".
  virtual const std::string& pages() const = 0;
  virtual const ResidencyPlan& plan() const = 0;
  // How it reads and why: "io_uring, 8 reads in flight, 40 slots registered (measured ...)".
  virtual std::string reading() const = 0;
  virtual const ReadChoice& read_choice() const = 0;
};

}  // namespace millrace::stream
